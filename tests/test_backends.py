"""Every attention backend gives the outputs and gradients of the formula."""

from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest
import torch
from helpers import CODED, KINDS, some_slow
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import flex_attention as torch_flex

from pe_bench.checks.ledger import blocks_of
from pe_bench.config import ModelConfig
from pe_bench.decoder import attention, blocked
from pe_bench.decoder.attention import BACKENDS, Backend, attend, record_backends
from pe_bench.decoder.cache import Cache
from pe_bench.decoder.logits import LogitTerms, reversed_toeplitz
from pe_bench.decoder.model import Decoder
from pe_bench.encoding import Encoding, StatefulEncoding
from pe_bench.errors import InputError
from pe_bench.positions import Positions
from pe_bench.registry import plugins

OTHERS = [backend for backend in BACKENDS if backend != "eager"]
SPECS = [
    *CODED,
    "kerple:form=power-weighted",
    "dape:base=fire",
    "path:gate=fox",
    "abacus:base=t5",
    "t5:train_positions=random",
]
# Tokens x channels of a head, no multiples of the block size.
CASES = [f"{spec}, 140 x 16" for spec in SPECS]
LONG = [f"{kind}, 1000 x 128" for kind in KINDS]
# Gradients of a few numbers are sums over all pairs, whose terms nearly cancel.
CANCELLING = ("cable", "carope", "fox", "gpt-oss", "log-temperature")
# There are no positions in the attention, so only torch's kernel makes a difference.
ROUNDED = ("abacus", "position-coupling")


def shape(channels: int) -> ModelConfig:
    return ModelConfig(
        layers=2,
        heads=2,
        width=2 * channels,
        mlp_width=16,
        vocab_size=40,
        train_length=64,
        init_std=0.1,
        digit_ids=(4, 5),
        separator_ids=(6,),
    )


def decoder(spec: str, channels: int) -> Decoder:
    """Return a model whose encoding has random weights; initially biases are zero."""
    torch.manual_seed(0)
    model = Decoder(shape(channels), plugins.load("encoding", spec).make)
    with torch.no_grad():
        for parameter in model.encodings.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    return model.eval()


def results(model: Decoder, tokens: Tensor, backend: Backend) -> dict[str, Tensor]:
    """Return hidden states and the gradients of all parameters, in float64."""
    model.zero_grad()
    hidden = model.hidden(tokens, backend=backend)
    weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(1))
    (hidden * weights.to(hidden.dtype)).sum().backward()
    named = {n: p.grad.double() for n, p in model.named_parameters() if p.grad is not None}
    return {"hidden": hidden.detach().double(), **named}


def errors(result: dict[str, Tensor], truth: dict[str, Tensor]) -> dict[str, float]:
    """Return the relative root mean square error of each tensor.

    Gradients that are zero except for rounding are left out, as for a bias equal for all keys.
    """
    assert result.keys() == truth.keys()
    sizes = {name: rms(expected) for name, expected in truth.items()}
    least = 1e-9 * max(sizes.values())
    return {n: rms(result[n] - truth[n]) / size for n, size in sizes.items() if size > least}


def rms(tensor: Tensor) -> float:
    return float(tensor.square().mean().sqrt())


def of_others(model: Decoder, tokens: Tensor) -> Iterator[tuple[Backend, dict[str, Tensor]]]:
    """Return the results of the other backends that support an encoding; "blocked" supports all."""
    for backend in OTHERS:
        try:
            found = results(model, tokens, backend)
        except InputError:
            assert backend != "blocked"
        else:
            yield backend, found


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(blocked.MAX_QUERIES, "cpu", 48)


@pytest.fixture(autouse=True)
def gradients_of_flex(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enable the gradient of uncompiled flex attention on a CPU, which torch disables."""
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *_: None)
    monkeypatch.setattr(attention, "FLEX_DEVICES", ["cpu"])


def parts(case: str) -> tuple[str, Tensor, int]:
    """Return the spec, tokens and channels of a head of a case."""
    spec, size = case.rsplit(", ", 1)
    length, channels = map(int, size.split(" x "))
    rows = 2 if length < 1000 else 1
    tokens = torch.randint(40, (rows, length), generator=torch.Generator().manual_seed(0))
    return spec, tokens, channels


# Uncompiled flex attention warns that it is slow.
pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", [*CASES, *LONG])
def test_backends_have_the_errors_of_the_formula(case: str) -> None:
    """Against the formula in float64, with weights that bfloat16 can represent."""
    spec, tokens, channels = parts(case)
    model = decoder(spec, channels).bfloat16()
    weights = model.state_dict()
    exact = decoder(spec, channels).double()
    exact.load_state_dict(weights)
    truth = results(exact, tokens, "eager")
    if case not in LONG:
        check_bfloat16(spec, model, tokens, truth)
    wide = decoder(spec, channels)
    wide.load_state_dict(weights)
    check_float32(spec, wide, tokens, truth)


def check_float32(spec: str, model: Decoder, tokens: Tensor, truth: dict[str, Tensor]) -> None:
    """Errors are below 1e-5, or where that is the formula's own, three times as large at most."""
    of_formula = errors(results(model, tokens, "eager"), truth)
    least = 5e-5 if spec in CANCELLING else 1e-5
    for backend, found in of_others(model, tokens):
        for name, size in errors(found, truth).items():
            assert size < max(least, 3 * of_formula[name]), (backend, name)


def check_bfloat16(spec: str, model: Decoder, tokens: Tensor, truth: dict[str, Tensor]) -> None:
    """The mean error of a tensor is at most 1.5 times the error of the formula."""
    of_formula = fmean(errors(results(model, tokens, "eager"), truth).values())
    most = 1.7 if spec in ROUNDED else 1.5
    for backend, found in of_others(model, tokens):
        assert fmean(errors(found, truth).values()) < most * of_formula, backend


@pytest.mark.parametrize("spec", some_slow(SPECS))
@torch.no_grad()
def test_blocks_of_rows_with_unequal_pasts(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a cache, the queries of a batch are in different columns in each row."""
    model = decoder(spec, 16).double()
    if not model.encoding.prefix_consistent:
        pytest.skip("cannot be cached")
    monkeypatch.setitem(blocked.MAX_QUERIES, "cpu", 8)
    _, tokens, _ = parts(f"{spec}, 63 x 16")
    outputs = []
    for backend in ("eager", "blocked"):
        cache = Cache(2, 63, final_lengths=torch.tensor([63, 55]))
        model.hidden(tokens[:, :40], cache, backend=backend)
        cache.truncate(torch.tensor([40, 32]))
        outputs.append(model.hidden(tokens[:, 40:], cache, backend=backend))
    torch.testing.assert_close(*outputs)


@pytest.mark.parametrize("spec", ["alibi", "tape", "sinks", "rope"])
@torch.no_grad()
def test_auto_makes_no_copy_of_the_cache(spec: str) -> None:
    """Torch's fused kernel needs no copies only if queries and keys are as wide as values."""
    model = decoder(spec, 16)
    tokens = torch.zeros(1, 60, dtype=torch.long)
    for new, backend in ((20, "sdpa"), (1, "sdpa" if spec == "rope" else "eager")):
        cache = Cache(1, 60)
        model(tokens[:, :40], cache=cache)
        with record_backends() as used:
            model(tokens[:, 40 : 40 + new], cache=cache)
        assert used[0] == backend, new  # no layer uses the state after the last layer of TAPE


@pytest.mark.parametrize("spec", ["alibi", "tape", "sinks", "rope"])
@torch.no_grad()
def test_fused_attention_gets_queries_keys_and_values_of_one_width(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With other widths, torch needs memory for all pairs of tokens."""
    widths: list[tuple[int, ...]] = []
    fused = F.scaled_dot_product_attention

    def watched(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        widths.append((q.shape[-1], k.shape[-1], v.shape[-1]))
        return fused(q, k, v, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    decoder(spec, 16)(torch.zeros(1, 140, dtype=torch.long), backend="sdpa")
    assert len(widths) == 2  # layers
    assert all(len({*each}) == 1 for each in widths)


@torch.no_grad()
def test_backends_are_recorded_inside_the_context_only() -> None:
    model = decoder("rope", 16)
    tokens = torch.zeros(1, 8, dtype=torch.long)
    with record_backends() as used:
        model.hidden(tokens, backend="eager")
        model.hidden(tokens, backend="blocked")
    model.hidden(tokens, backend="sdpa")
    layers = model.config.layers
    assert used == ["eager"] * layers + ["blocked"] * layers


@torch.no_grad()
def test_short_rows_with_a_bias_count_as_eager() -> None:
    model = decoder("t5", 16)
    with record_backends() as used:
        for length in (attention.SHORT, attention.SHORT + 1):
            model.hidden(torch.zeros(1, length, dtype=torch.long))
    layers = model.config.layers
    assert used == ["eager"] * layers + ["sdpa"] * layers


@pytest.mark.parametrize("spec", some_slow(SPECS))
def test_blocks_keep_nothing_as_large_as_all_pairs(spec: str) -> None:
    model = decoder(spec, 16)
    kept = []
    for length in (200, 400):  # products are prepared from 128 tokens on
        sizes: dict[int, int] = {}

        def keep(tensor: Tensor, sizes: dict[int, int] = sizes) -> Tensor:
            sizes[tensor.data_ptr()] = tensor.numel()
            return tensor

        tokens = torch.zeros(1, length, dtype=torch.long)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model.hidden(tokens, backend="blocked")
        kept.append(sum(sizes.values()))
    assert kept[1] < 2.1 * kept[0]  # four times as many pairs


def test_toeplitz_is_a_view_in_falling_order() -> None:
    table = torch.arange(1.0, 6.0)[None]  # distances 0 to 4
    bias = reversed_toeplitz(table, 2, 4)[0]  # queries 3 and 2, keys 0 to 3
    assert bias.tolist() == [[4, 3, 2, 1], [3, 2, 1, 0]]
    assert bias.untyped_storage().nbytes() < 4 * bias.numel()


@pytest.mark.slow
def test_auto_takes_the_fastest_for_each_length(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    for name in ("_short_with_bias", "sdpa_attention", "blocked_attention"):
        own = getattr(attention, name)

        def watched(*args: Any, name: str = name, own: Any = own) -> Tensor:
            taken.append(name)
            result: Tensor = own(*args)
            return result

        monkeypatch.setattr(attention, name, watched)
    for spec in ("rope", "t5", "fire", "cope"):
        model = decoder(spec, 16)
        for length in (attention.SHORT, attention.SHORT + 1, attention.LONG):
            model.hidden(torch.zeros(1, length, dtype=torch.long))
    expected = 3 * ["sdpa_attention"]  # rope
    expected += 2 * ["_short_with_bias", "sdpa_attention", "blocked_attention"]  # t5, fire
    expected += ["blocked_attention"]  # CoPE, which is eager where rows are short
    assert taken == [name for name in expected for _ in range(2)]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_short_rows(name: str, kv_heads: int) -> None:
    """For short rows, the backend "auto" has the outputs and gradients of the formula."""
    torch.manual_seed(0)
    tokens = torch.randint(40, (3, attention.SHORT))
    found = []
    backends: tuple[Backend, ...] = ("auto", "eager")
    for backend in backends:
        torch.manual_seed(1)
        shape_of = replace(shape(16), kv_heads=kv_heads)
        model = Decoder(shape_of, plugins.load("encoding", name).make).double()
        for parameter in model.encodings.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        model.hidden(tokens, backend=backend).square().sum().backward()
        found.append([p.grad for p in model.parameters() if p.grad is not None])
    for new, expected in zip(*found, strict=True):
        torch.testing.assert_close(new, expected, rtol=1e-9, atol=1e-9)


def test_a_backend_that_cannot_serve_is_refused() -> None:
    q = torch.randn(1, 1, 4, 8)
    ids = torch.arange(4)[None]
    positions = Positions(ids, ids, state=q)
    rewriting = LogitTerms(positions, rewrite=lambda scores, *_: scores)
    cases: list[tuple[Backend, LogitTerms, str]] = [
        ("sdpa", rewriting, "rewrites logits; use eager"),
        ("blocked", rewriting, "a state, which cannot be divided into blocks; use eager"),
        ("flex", LogitTerms(bias=lambda _: None), "depends on more than the distance; use sdpa"),
        ("flex", LogitTerms(Positions(ids, ids, ids)), "some of the tokens are cached"),
    ]
    for backend, terms, reason in cases:
        with pytest.raises(InputError, match=reason):
            attend(q, q, q, terms, backend=backend)


class Stated(StatefulEncoding):
    """An encoding whose bias depends on the state of all tokens."""

    shared = False

    def prepare(self, x: Tensor, positions: Positions) -> Tensor:
        return x.sum(-1)  # (B, T)

    def bias(self, positions: Positions) -> Tensor:
        state: Tensor = positions.state
        return (state[:, :, None] - state[:, None, :])[:, None]  # (B, 1, T, T)


def test_a_bias_of_a_state_is_not_divided_into_blocks() -> None:
    model = Decoder(shape(16), Stated)
    tokens = torch.zeros(1, attention.LONG, dtype=torch.long)
    torch.testing.assert_close(model(tokens), model(tokens, backend="eager"))


class Soft(Encoding):
    """An encoding whose logits are needed in the backward pass, as for tanh."""

    def rewrite_logits(self, scores: Tensor, q: Tensor, k: Tensor, positions: Positions) -> Tensor:
        return 3 * (scores / 3).tanh() if self.layer else scores.tanh()


def test_a_mask_does_not_change_what_a_backward_pass_needs() -> None:
    model = Decoder(shape(16), Soft).double()
    tokens = torch.arange(30)[None]
    expected = results(model, tokens, "eager")
    found = results(model, tokens, "blocked")
    assert max(errors(found, expected).values()) < 1e-9


def test_what_flex_refuses_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "FLEX_DEVICES", ["cuda"])
    q = torch.randn(1, 1, 4, 16)

    def reason(q: Tensor, v: Tensor) -> str | None:
        return attention.reason_against("flex", q, v, LogitTerms(), device="cuda")

    assert reason(q, q) is None
    assert reason(q.double(), q.double()) == "it adds in float32"
    assert reason(q, q[..., :8]) == reason(q[..., :8], q) is not None


class Dropout(Encoding):
    """Random numbers in each hook that blocks call."""

    shared = False

    def __init__(self, model: ModelConfig, layer: int = 0) -> None:
        super().__init__(model, layer)
        self.slope = torch.nn.Parameter(torch.ones(model.heads))

    def bias(self, positions: Positions) -> Tensor:
        bias = -self.slope[:, None, None] * positions.distance[:, None]  # (B, H, T, S)
        return torch.nn.functional.dropout(bias, 0.5, self.training)

    def normalise(self, logits: Tensor) -> Tensor:
        return torch.nn.functional.dropout(logits.softmax(-1), 0.5, self.training)


@pytest.mark.parametrize("recompute", [False, True])
def test_blocks_draw_the_same_random_numbers_in_the_backward_pass(recompute: bool) -> None:
    model = Decoder(shape(8), Dropout).double()
    model.recompute = recompute
    tokens = torch.randint(40, (2, 40))

    def loss() -> Tensor:
        torch.manual_seed(3)
        squares: Tensor = model(tokens, backend="blocked").square()
        return squares.mean()

    with blocks_of(blocked.MIN_QUERIES):
        loss().backward()
        after = torch.rand(1)
        with torch.no_grad():
            loss()
            assert torch.equal(torch.rand(1), after)  # the backward pass draws none
            slope = model.encoding.get_parameter("slope")
            losses = []
            for step in (1e-5, -2e-5):
                slope[0] += step
                losses.append(loss())
    assert slope.grad is not None
    torch.testing.assert_close(slope.grad[0], (losses[0] - losses[1]) / 2e-5, rtol=1e-5, atol=0)
