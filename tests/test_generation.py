"""Greedy decoding and sampling, with and without a cache."""

from typing import Any

import pytest
import torch
from torch import Tensor

from pe_bench.config import ModelConfig
from pe_bench.decoder.cache import Cache
from pe_bench.decoder.generation import NotFiniteError, Sampling, generate, log_likelihoods
from pe_bench.decoder.model import Decoder
from pe_bench.encoding import Encoding
from pe_bench.encodings.sinusoidal import Sinusoidal
from pe_bench.errors import InputError
from pe_bench.positions import Positions
from pe_bench.registry import plugins
from pe_bench.sequences.rows import Turn, collate
from pe_bench.sequences.scoring import exact_match

PROMPTS = [[3, 1, 4, 1, 5, 9, 2], [6], [5, 3, 5, 8]]
NO_END = -1


class Counting(Sinusoidal):
    """An encoding that records the rows and tokens of each forward pass."""

    def __init__(self, model: ModelConfig, layer: int = 0) -> None:
        super().__init__(model, layer)
        self.calls: list[tuple[int, int]] = []

    def embed(self, x: Tensor, positions: Positions) -> Tensor:
        self.calls.append((x.shape[0], x.shape[1]))
        return super().embed(x, positions)


class CountingUncached(Counting):
    prefix_consistent = False


class Stretched(Counting):
    """An encoding whose outputs depend on the length of the sequence."""

    prefix_consistent = False

    def embed(self, x: Tensor, positions: Positions) -> Tensor:
        return super().embed(x, positions) * (1 + 1 / positions.query.shape[-1])


def decoder(encoding: type[Counting] = Counting) -> tuple[Decoder, list[tuple[int, int]]]:
    """Return a model with large weights, which avoid ties of likeliest tokens, and its calls."""
    torch.manual_seed(0)
    shape = ModelConfig(layers=2, width=32, mlp_width=48, vocab_size=50, init_std=0.3)
    model = Decoder(shape, encoding).double().eval()
    assert isinstance(model.encoding, Counting)
    return model, model.encoding.calls


@torch.no_grad()
def step_by_step(model: Decoder, prompt: list[int], steps: int) -> list[int]:
    row = list(prompt)
    for _ in range(steps):
        row.append(int(model(torch.tensor([row]))[0, -1].argmax()))
    return row[len(prompt) :]


@pytest.mark.parametrize("encoding", [Counting, CountingUncached])
def test_greedy_decoding(encoding: type[Counting]) -> None:
    model, calls = decoder(encoding)
    answers = generate(model, PROMPTS, max_new_tokens=6, end=NO_END)
    if encoding.prefix_consistent:
        assert calls == [(3, 7), *[(3, 1)] * 5]
    else:
        assert calls == [(1, len(prompt) + step) for prompt in PROMPTS for step in range(6)]
    assert answers == [step_by_step(model, prompt, 6) for prompt in PROMPTS]
    # Each row stops on its own, and its end is not part of the answer.
    end = answers[0][2]
    stopped = [row[: row.index(end)] if end in row else row for row in answers]
    assert len(stopped[0]) < 6 and stopped != [[], [], []]
    assert generate(model, PROMPTS, max_new_tokens=6, end=end) == stopped
    assert generate(model, PROMPTS, max_new_tokens=2, end=NO_END) == [row[:2] for row in answers]
    assert generate(model, PROMPTS, max_new_tokens=0, end=NO_END) == [[], [], []]
    assert generate(model, [], max_new_tokens=6, end=NO_END) == []


@torch.no_grad()
def test_without_a_cache_only_prompts_of_one_length_share_a_batch() -> None:
    model, calls = decoder(CountingUncached)
    prompts = [[5, 6, 7], [8], [7, 6, 5], [9, 9, 9]]
    answers = generate(model, prompts, max_new_tokens=4, end=NO_END)
    assert calls == [(3, 3 + step) for step in range(4)] + [(1, 1 + step) for step in range(4)]
    assert answers == [step_by_step(model, prompt, 4) for prompt in prompts]
    end = answers[0][1]
    stopped = [row[: row.index(end)] if end in row else row for row in answers]
    assert generate(model, prompts, max_new_tokens=4, end=end) == stopped


@pytest.mark.parametrize(
    ("encoding", "expected"), [(Counting, [(2, 7)]), (CountingUncached, [(2, 7)])]
)
def test_decoding_goes_no_further_than_the_last_end(
    encoding: type[Counting], expected: list[tuple[int, int]]
) -> None:
    model, calls = decoder(encoding)
    first = generate(model, PROMPTS[:1], max_new_tokens=1, end=NO_END)[0][0]
    calls.clear()
    assert generate(model, PROMPTS[:1] * 2, max_new_tokens=9, end=first) == [[], []]
    assert calls == expected


def test_ties_go_to_the_smallest_id() -> None:
    model, _ = decoder()
    model.lm_head.weight.data.zero_()
    assert generate(model, PROMPTS, max_new_tokens=2, end=NO_END) == [[0, 0]] * 3


@pytest.mark.slow
@pytest.mark.parametrize("encoding", [Counting, CountingUncached])
def test_sampling(encoding: type[Counting]) -> None:
    model, _ = decoder(encoding)

    def sample(**options: Any) -> list[list[int]]:
        return generate(model, PROMPTS, max_new_tokens=6, end=NO_END, sampling=Sampling(**options))

    greedy = generate(model, PROMPTS, max_new_tokens=6, end=NO_END)
    assert sample(top_k=1) == sample(top_p=1e-6) == greedy
    assert sample(seed=1) == sample(seed=1) != sample(seed=2)
    assert sample() != greedy


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "kept"), [({}, 50), ({"top_k": 4}, 4), ({"top_p": 0.6}, None), ({"top_k": 50}, 50)]
)
@torch.no_grad()
def test_the_distribution_of_samples(options: dict[str, Any], kept: int | None) -> None:
    (model, _), draws = decoder(), 4000
    probabilities = model(torch.tensor([PROMPTS[2]]))[0, -1].softmax(-1)
    likeliest, ids = probabilities.sort(descending=True)
    if kept is None:  # the fewest that reach top_p
        kept = int((likeliest.cumsum(0) < options["top_p"]).sum()) + 1
        assert 1 < kept < 50
    expected = torch.zeros(50, dtype=torch.float64)
    expected[ids[:kept]] = likeliest[:kept] / likeliest[:kept].sum()
    answers = generate(
        model, [PROMPTS[2]] * draws, max_new_tokens=1, end=NO_END, sampling=Sampling(**options)
    )
    counts = torch.tensor(answers)[:, 0].bincount(minlength=50)
    spread = (draws * expected * (1 - expected)).sqrt()
    assert ((counts - draws * expected).abs() <= 5 * spread + 1e-9).all()


@pytest.mark.parametrize("wrong", [{"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.5}])
def test_sampling_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="top_p above 0"):
        Sampling(**wrong)


@pytest.mark.parametrize("spec", ["rope", "hybrid:window=3,pattern=lg", "randpe"])
@torch.no_grad()
def test_a_cache_grows_and_keeps_chosen_rows(spec: str) -> None:
    shape = ModelConfig(layers=2, width=32, mlp_width=48, vocab_size=50, init_std=0.3)
    model = Decoder(shape, plugins.load("encoding", spec).make).double().eval()
    tokens = torch.randint(50, (3, 10))
    expected = model(tokens)
    cache = Cache(3, 6, final_lengths=torch.full((3,), 10))
    found = [model(tokens[:, :5], cache)]
    cache.grow(10)
    found.append(model(tokens[:, 5:6], cache))
    torch.testing.assert_close(torch.cat(found, 1), expected[:, :6])
    rows = torch.tensor([2, 0])
    cache.select(rows)
    for index in range(6, 10):
        logits = model(tokens[rows, index : index + 1], cache)
        torch.testing.assert_close(logits, expected[rows, index : index + 1])
    assert (cache.capacity, cache.filled, cache.lengths.tolist()) == (10, 10, [10, 10])


@pytest.mark.parametrize("cls", [Counting, CountingUncached])
def test_training_mode_is_refused(cls: type[Counting]) -> None:
    """In training, an encoding may draw other positions in each step."""
    model, calls = decoder(cls)
    model.train()
    with pytest.raises(InputError, match=r"generate needs evaluation mode: call model.eval\(\)"):
        model.generate(PROMPTS, max_new_tokens=2)
    with pytest.raises(InputError, match="log_likelihoods needs evaluation mode"):
        log_likelihoods(model, [1], [[2]])
    assert not calls


@pytest.mark.parametrize("how", ["contiguous", "offset", "random"])
def test_a_cache_in_training_mode(how: str) -> None:
    """It is refused if positions are drawn, since its keys would have those of other draws."""

    def make(model: ModelConfig, layer: int = 0) -> Sinusoidal:
        return Sinusoidal(model, layer, train_positions=how)

    shape = ModelConfig(layers=1, width=32, mlp_width=48, vocab_size=50)
    model = Decoder(shape, make).train()
    tokens = torch.tensor([[1]])
    if how == "contiguous":
        assert model(tokens, Cache(1, 4)).isfinite().all()
    else:
        with pytest.raises(InputError, match="a cache needs evaluation mode"):
            model(tokens, Cache(1, 4))


@pytest.mark.parametrize("wrong", [-1, 50, 10**9])
def test_ids_outside_the_vocabulary_are_refused(wrong: int) -> None:
    model, _ = decoder()
    expected = f"has the token id {wrong}, but a vocabulary of 50 tokens has the ids 0 to 49"
    with pytest.raises(InputError, match=expected):
        generate(model, [[1], [2, wrong]], max_new_tokens=2, end=NO_END)
    with pytest.raises(InputError, match=expected):
        log_likelihoods(model, [wrong], [[1]])
    with pytest.raises(InputError, match=expected):
        log_likelihoods(model, [1], [[1, wrong]])
    if wrong != NO_END:
        with pytest.raises(InputError, match=f"end {expected}"):
            generate(model, [[1]], max_new_tokens=2, end=wrong)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InputError, match="begin it with BOS"):
        generate(decoder()[0], [[1], []], max_new_tokens=2, end=NO_END)


def test_prompts_may_be_tensors_and_arrays() -> None:
    model, _ = decoder()
    prompts = torch.tensor([[3, 1, 4], [1, 5, 9]])
    expected = generate(model, prompts.tolist(), max_new_tokens=4, end=NO_END)
    others: list[Any] = [prompts, prompts.numpy(), [list(row) for row in prompts]]
    for given in others:
        assert generate(model, given, max_new_tokens=4, end=NO_END) == expected


@pytest.mark.parametrize(
    "wrong", [[[1.0]], [[True]], torch.ones(1, 2), [["a"]], [1, 2], ["ab"], torch.ones(2).int()]
)
def test_prompts_of_other_values_are_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match="token ids"):
        generate(decoder()[0], wrong, max_new_tokens=2, end=NO_END)
    with pytest.raises(InputError, match="max_new_tokens must not be negative"):
        generate(decoder()[0], [[1]], max_new_tokens=-1, end=NO_END)


@pytest.mark.parametrize(
    ("prompt", "continuations", "message"),
    [
        ([], [[1]], "an empty prompt predicts nothing"),
        ([1.0], [[1]], "token ids"),
        ([1], [[True]], "token ids"),
        ([1], [2], "lists of token ids"),
    ],
)
def test_log_likelihoods_of_other_values_are_refused(
    prompt: Any, continuations: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        log_likelihoods(decoder()[0], prompt, continuations)


def test_log_likelihoods_of_nothing() -> None:
    assert log_likelihoods(decoder()[0], [1], []) == []


@pytest.mark.parametrize("encoding", [Counting, Stretched])
@torch.no_grad()
def test_log_likelihoods_are_those_of_each_continuation_alone(encoding: type[Counting]) -> None:
    model, _ = decoder(encoding)
    prompt, continuations = [3, 1, 4], [[7], [8, 2, 6, 6], [9, 9]]
    for found, continuation in zip(
        log_likelihoods(model, prompt, continuations), continuations, strict=True
    ):
        logits = model(torch.tensor([[*prompt, *continuation[:-1]]])).log_softmax(-1)[0]
        places = range(len(prompt) - 1, len(prompt) + len(continuation) - 1)
        alone = sum(float(logits[p, t]) for p, t in zip(places, continuation, strict=True))
        assert found == pytest.approx(alone, abs=1e-9)


@torch.no_grad()
def test_logits_do_not_tie_in_bfloat16() -> None:
    """Among tokens with equal logits in bfloat16, the likeliest is written, not the smallest id."""
    model = decoder()[0].float()
    rows = collate([[Turn(PROMPTS[0], [7])]])
    tokens = torch.tensor([PROMPTS[0]])
    for kind in ("autocast", "bfloat16"):
        model = model.bfloat16() if kind == "bfloat16" else model
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
            last = model.hidden(tokens)[0, -1]
            model.lm_head.weight.zero_()
            model.lm_head.weight[3] = last
            model.lm_head.weight[7] = last
            place = int(last.abs().argmin())
            model.lm_head.weight[7, place] *= 1.25  # by less than the products are rounded by
            assert model.lm_head(last)[3] == model.lm_head(last)[7]
            assert generate(model, [PROMPTS[0]], max_new_tokens=1, end=NO_END) == [[7]]
            assert exact_match(model, rows).exact.all()
            losses = []
            for target in (3, 7):
                targets = torch.full_like(tokens, target)
                losses.append(model.token_losses(tokens, targets)[0, -1])
            assert losses[1] < losses[0]


class Overflowing(Encoding):
    """An encoding whose logits are NaN if a key is more than seven tokens away."""

    shift_invariant = True

    def distance_bias(self, distances: Tensor) -> Tensor:
        bias = torch.where(distances <= 7, 0.0, torch.nan)  # (distances,)
        return bias.expand(self.model.heads, -1)


class OverflowingUncached(Overflowing):
    prefix_consistent = False


@pytest.mark.parametrize("encoding", [Overflowing, OverflowingUncached])
@pytest.mark.parametrize("sampling", [None, Sampling(top_k=5)])
def test_logits_that_are_not_finite_are_an_error(
    encoding: type[Overflowing], sampling: Sampling | None
) -> None:
    torch.manual_seed(0)
    model = Decoder(ModelConfig(layers=1, width=32, mlp_width=48, vocab_size=50), encoding).eval()

    def write(prompt: int, new: int) -> list[list[int]]:
        prompts = [[1] * prompt, [1]]
        return generate(model, prompts, max_new_tokens=new, end=NO_END, sampling=sampling)

    assert [len(answer) for answer in write(5, 4)] == [4, 4]
    with pytest.raises(NotFiniteError, match="NaN or infinite after 9 tokens"):
        write(5, 5)
    with pytest.raises(NotFiniteError, match="NaN or infinite after 12 tokens"):
        write(12, 1)
    assert log_likelihoods(model, [1, 2, 3], [[4], [5, 6]])[0] < 0
    with pytest.raises(NotFiniteError, match="NaN or infinite after 9 tokens"):
        log_likelihoods(model, [1, 2, 3], [[4], [5] * 7])
