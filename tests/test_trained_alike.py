"""A trained model scores the same on its training batches in training and in evaluation.

Some encodings declare different position ids for the two. If ids differ by mistake, a model is
evaluated on positions that it was not trained on.
"""

import numpy as np
import pytest
import torch
from helpers import some_slow
from torch import Tensor

from pe_bench.config import IGNORE, ModelConfig
from pe_bench.decoder.model import Decoder
from pe_bench.encodings.rope import Remap
from pe_bench.registry import plugins
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
TOLERANCE = 0.05  # for fractions: four standard errors of the mean over draws
# By default these are trained as RoPE, and only evaluation differs.
REMAPS = {
    name
    for name in plugins.names("encoding")
    if issubclass(plugins.load("encoding", name).cls, Remap)
}
NAMES = [n + ":train_remapped=true" * (n in REMAPS) for n in plugins.names("encoding")]
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
# Encodings with random ids are trained for longer and evaluated over many draws.
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


def train(model: Decoder, steps: int) -> None:
    """Train on padded batches of rows of unequal length."""
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, steps)
    for step in range(steps):
        tokens, targets = rows(step, 48).batch()
        loss = model.token_losses(tokens, targets).sum() / (targets != IGNORE).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


@torch.no_grad()
def right_in_training(model: Decoder, items: Sequences, draw: int) -> Tensor:
    """Return which rows (N,) are right in a training forward of a padded batch."""
    tokens, targets = items.batch()
    torch.manual_seed(draw)
    predicted = model.train()(tokens).argmax(-1)
    right: Tensor = (predicted == targets) | (targets == IGNORE)
    return right.all(1)


def right_in_evaluation(model: Decoder, items: Sequences, draw: int) -> Tensor:
    """Return which rows (N,) evaluation finds right."""
    model.eval().use_eval_sample(draw)
    return torch.from_numpy(exact_match(model, items).exact)


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


@pytest.mark.parametrize("spec", some_slow([*NAMES, *VARIANTS], everyday=EVERYDAY))
def test_evaluation_scores_as_training_does(spec: str) -> None:
    model = untrained(spec)
    items = rows(0, ROWS)
    tokens = items.batch().tokens[:8]
    torch.manual_seed(0)
    with torch.no_grad():
        is_random = not torch.equal(model.train()(tokens), model(tokens))
    train(model, 120 if is_random else 30)
    draws = range(DRAWS if is_random else 1)
    trained = torch.stack([right_in_training(model, items, draw) for draw in draws]).float()
    measured = torch.stack([right_in_evaluation(model, items, draw) for draw in draws]).float()
    if not is_random:  # the same rows, up to one tie that rounding breaks
        assert (trained != measured).sum() <= 1
    elif "even" in spec or spec == "pose":  # the mean of all draws, or no skip: easier than each
        assert measured.mean() > trained.mean() - TOLERANCE
    else:
        assert abs(measured.mean() - trained.mean()) < TOLERANCE
    check_ways_agree(model, items.take(np.arange(16)))
