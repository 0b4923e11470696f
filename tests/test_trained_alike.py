"""A model scores the same on its training batches in training and in evaluation.

Some encodings declare different position ids for the two. If ids differ by mistake, a model is
evaluated on positions that it was not trained on.
"""

from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
import torch
from helpers import CODED, some_slow

from pe_bench.config import IGNORE, ModelConfig
from pe_bench.decoder.model import Decoder
from pe_bench.encodings.rope import Remap
from pe_bench.registry import catalogue, plugins
from pe_bench.sequences.rows import END, FIRST, Sequences, Turn, collate
from pe_bench.sequences.scoring import exact_match, teacher_forced

SYMBOLS = range(FIRST, FIRST + 8)
EQUALS = FIRST + 8
LONGEST = 20  # symbols in a prompt
CONFIG = ModelConfig(
    layers=2,
    heads=2,
    width=32,
    mlp_width=64,
    init_std=0.1,
    vocab_size=EQUALS + 1,
    train_length=LONGEST + 4,
    digit_ids=tuple(SYMBOLS[:6]),
    separator_ids=(SYMBOLS[6],),
)
ROWS = 256
DRAWS = 16  # draws of random ids
STEPS = 120
TOLERANCE = 0.05  # five standard errors of the mean over draws
# By default these are trained as RoPE, and only evaluation differs.
REMAPS = {
    name
    for name in catalogue.names("encoding")
    if issubclass(plugins.load("encoding", name).cls, Remap)
}
NAMES = [n + ":train_remapped=true" * (n in REMAPS) for n in CODED]
VARIANTS = (
    "randpe:evaluation=even",
    "randpe:per_layer=true",
    "abacus:base=randpe,offset=5",
    "rope:train_positions=random",
    "rope:train_positions=offset",
    "rope:scaling=dynamic-pi,original_length=6",
    "rope:scaling=longrope,factor=2,original_length=12,factors=1;1;2;4;8;8;8;8,"
    "short_factors=1;1;1;1;1;1;1;1",
    "alibi:train_positions=random",
    "fire:train_positions=random",
    "learned:train_positions=offset",
)
EVERYDAY = ("tape", "rope:scaling=dynamic-pi,original_length=6")


def rows(seed: int, number: int) -> Sequences:
    """Return prompts of 2 to 20 symbols; the answer is the last two, the last one first."""
    rng = np.random.default_rng(seed)
    samples = []
    for size in rng.integers(2, LONGEST + 1, number):
        prompt = rng.choice(SYMBOLS, size).tolist()
        samples.append([Turn([*prompt, EQUALS], [prompt[-1], prompt[-2], END])])
    return collate(samples)


def untrained(spec: str) -> Decoder:
    torch.manual_seed(0)
    return Decoder(CONFIG, plugins.load("encoding", spec).make)


@torch.no_grad()
def use_random_weights(model: Decoder) -> None:
    """Add noise to all weights: answers depend on positions, and no weight of an encoding is 0."""
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter), alpha=0.2)


def train(model: Decoder) -> None:
    """Train on padded batches of rows of unequal length."""
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, STEPS)
    for step in range(STEPS):
        tokens, targets = rows(step, 48).batch()
        loss = model.token_losses(tokens, targets).sum() / (targets != IGNORE).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


@torch.no_grad()
def with_answers_of(model: Decoder, items: Sequences) -> Sequences:
    """Replace the answers by those that the model gives in training forwards of a padded batch."""
    ids = items.ids.copy()  # (N, T)
    every_row = np.arange(len(items))
    for column in (3, 2, 1):  # from the end of a row
        tokens, _ = replace(items, ids=ids).batch()
        predicted = model.train()(tokens).argmax(-1).numpy()  # (N, T - 1)
        written = items.lengths - column
        ids[every_row, written] = predicted[every_row, written - 1]
    return replace(items, ids=ids)


@torch.no_grad()
def score_in_training(model: Decoder, items: Sequences, draw: int) -> float:
    """Return the fraction of tokens that are right in a training forward of a padded batch."""
    tokens, targets = items.batch()
    torch.manual_seed(draw)
    predicted = model.train()(tokens).argmax(-1)
    scored = targets != IGNORE
    return float((predicted == targets)[scored].float().mean())


def score_in_evaluation(model: Decoder, items: Sequences, draw: int) -> float:
    model.eval().use_eval_sample(draw)
    scores = teacher_forced(model, items)
    assert scores.correct is not None
    return float(scores.correct.sum() / scores.counts.sum())


def check_ways_agree(model: Decoder, items: Sequences) -> None:
    """Rows are right with teacher forcing if and only if the model writes them."""
    exact = exact_match(model, items).exact.tolist()
    assert teacher_forced(model, items).exact.tolist() == exact
    prompts = []
    answers = []
    for ids, length in zip(items.ids, items.lengths, strict=True):
        prompts.append(ids[: length - 3].tolist())
        answers.append(ids[length - 3 : length].tolist())
    written = model.generate(prompts, max_new_tokens=3)
    assert [one == other for one, other in zip(written, answers, strict=True)] == exact


@torch.no_grad()
def has_random_ids(model: Decoder) -> bool:
    tokens = rows(0, 8).batch().tokens
    return not torch.equal(model.train()(tokens), model(tokens))


@pytest.mark.parametrize("spec", some_slow([*NAMES, *VARIANTS], everyday=EVERYDAY))
def test_evaluation_scores_as_training_does(spec: str) -> None:
    """Every answer that a model gives in training is right in evaluation.

    With random ids, answers differ between draws: the mean scores of a trained model are equal.
    """
    model = untrained(spec)
    if has_random_ids(model):
        items = rows(0, ROWS)
        train(model)
        trained = fmean(score_in_training(model, items, draw) for draw in range(DRAWS))
        measured = fmean(score_in_evaluation(model, items, draw) for draw in range(DRAWS))
        if "even" in spec or spec == "pose":  # the mean of all draws, or no skip: easier than each
            assert measured > trained - TOLERANCE
        else:
            assert abs(measured - trained) < TOLERANCE
    else:
        use_random_weights(model)
        items = with_answers_of(model, rows(0, ROWS // 4))
        exact = exact_match(model.eval(), items).exact
        assert (exact == 0).sum() <= 1  # a tie that rounding breaks
    check_ways_agree(model, items.take(np.arange(16)))
