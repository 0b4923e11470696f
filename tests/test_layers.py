"""Windows, hybrids, temperatures, sinks and other changes of the softmax."""

from typing import Any

import pytest
import torch
from helpers import KINDS, some_slow
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex

from pe_bench.checks.encodings import CHECKS
from pe_bench.checks.findings import NotApplicable
from pe_bench.checks.subject import CONFIG, Subject
from pe_bench.config import ModelConfig
from pe_bench.decoder import attention, blocked
from pe_bench.decoder.attention import BACKENDS, attend, reason_against
from pe_bench.decoder.cache import Cache
from pe_bench.decoder.layer import AttentionLayer
from pe_bench.decoder.logits import LogitTerms
from pe_bench.decoder.model import Decoder
from pe_bench.encoding import Encoding
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.rope import RoPE
from pe_bench.errors import InputError
from pe_bench.positions import Positions
from pe_bench.registry import catalogue, plugins
from pe_bench.visibility import Visibility

NAMES = [name for name in catalogue.names("encoding") if name != "hybrid"]
SEEN = {
    "window": Visibility(window=7),
    "chunk": Visibility(chunk=6),
    "both": Visibility(window=9, chunk=12),
    "first": Visibility(window=5, first=3),
}


def sees(visible: Visibility, i: int, j: int) -> bool:
    """Return whether a query attends to a key, by the definition."""
    if j > i:
        return False
    near = visible.window is None or i - j < visible.window
    alike = visible.chunk is None or i // visible.chunk == j // visible.chunk
    return (near and alike) or j < visible.first


@pytest.mark.parametrize("name", SEEN)
def test_visibility(name: str) -> None:
    visible, columns = SEEN[name], torch.arange(30)[None]
    expected = torch.tensor([[sees(visible, i, j) for j in range(30)] for i in range(30)])
    assert torch.equal(visible.mask(columns, columns)[0, 0], expected)
    assert torch.equal(visible.count(columns)[0], expected.sum(1))
    for length in range(1, 31):
        hidden = not expected[:length, :length].equal(torch.ones(length, length).tril().bool())
        assert visible.hides(length) or not hidden


@pytest.mark.parametrize("name", SEEN)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("of", ["nothing", "distance", "sink", "separable", "rewrite"])
def test_backends_leave_out_what_is_hidden(
    name: str, backend: Any, of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(blocked.MAX_QUERIES, "cpu", 4)
    monkeypatch.setattr(blocked, "MIN_QUERIES", 4)
    monkeypatch.setattr(attention, "FLEX_DEVICES", ["cpu"])
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 37, 8, dtype=torch.float64) for _ in range(3))
    table = torch.randn(3, 37, dtype=torch.float64)
    extra = torch.randn(3, dtype=torch.float64)
    ids = torch.arange(37)[None]
    positions = Positions(ids, ids, visible=SEEN[name], is_arange=True)
    distance = (ids[:, :, None] - ids[:, None]).clamp(min=0)[0]
    bias = torch.zeros(3, 37, 37, dtype=torch.float64)
    terms = LogitTerms(positions)
    if of == "distance":
        terms, bias = LogitTerms(positions, by_distance=table), table[:, distance]
    if of == "separable":
        terms = LogitTerms(positions, separable=table[None])
        bias = table[:, :, None] - table[:, None]
    if of == "sink":
        terms = LogitTerms(positions, sink=extra)
    if of == "rewrite":
        terms = LogitTerms(positions, rewrite=lambda scores, *_: 2 * scores)
    if reason_against(backend, q, v, terms):
        pytest.skip("does not serve")
    logits = q @ k.mT / 8**0.5 * (2 if of == "rewrite" else 1) + bias
    hidden = torch.tensor([[not sees(SEEN[name], i, j) for j in range(37)] for i in range(37)])
    weights = logits.masked_fill(hidden, -torch.inf).exp()
    total = weights.sum(-1, keepdim=True)
    if of == "sink":
        total = total + extra.exp()[:, None, None]
    torch.testing.assert_close(attend(q, k, v, terms, backend=backend), weights / total @ v)


class Sink(RoPE):
    shared = False

    def __init__(self, model: ModelConfig, layer: int = 0) -> None:
        super().__init__(model, layer)
        self.logit = torch.nn.Parameter(torch.linspace(-1, 3, model.heads))

    def sink(self) -> Tensor:
        return self.logit


class Squares(NoPE):
    def normalise(self, logits: Tensor) -> Tensor:
        squares = logits.relu().square()
        return squares / (1 + squares.sum(-1, keepdim=True))


class WindowedSink(Sink):
    visible = Visibility(window=6, first=2)


class Short(RoPE):
    visible = Visibility(window=6)


@pytest.mark.parametrize(
    "cls", some_slow([Sink, Squares, WindowedSink, Short], everyday=[Squares, WindowedSink])
)
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.usefixtures("four_layers")
def test_checks_hold(cls: type[Encoding], check: str) -> None:
    try:
        assert CHECKS[check](Subject(cls)) is None
    except NotApplicable as claim:
        assert str(claim)


class Leaks(RoPE):
    visible = Visibility(window=6)

    def token_features(self, x: Tensor, positions: Positions) -> Tensor:
        return x.mean(-1)[:, None, :, None].expand(-1, self.model.heads, -1, 1)

    def scan_features(self, features: Tensor) -> Tensor:
        return features.cumsum(2)

    def separable_bias(self, positions: Positions) -> Tensor:
        assert positions.features is not None
        return positions.features[..., 0] ** 2


class Cold(RoPE):
    def temperature(self, positions: Positions) -> Tensor:
        return (3 - positions.count.float())[:, None]


class Everywhere(NoPE):
    def normalise(self, logits: Tensor) -> Tensor:
        return torch.full_like(logits, 0.5)


class LeaksOnce(Leaks):
    shared = False

    def separable_bias(self, positions: Positions) -> Tensor:
        found = super().separable_bias(positions)
        return found if self.layer == 2 else 0 * found


class ColdOnce(RoPE):
    """Its temperature is not finite for one number of keys in one layer."""

    shared = False
    wrong = torch.inf

    def temperature(self, positions: Positions) -> Tensor:
        once = (positions.count == 200) & (self.layer == 2)
        return torch.where(once, self.wrong, 0.0)[:, None]


class BelowZeroOnce(ColdOnce):
    wrong = -0.25


class SeesOnce(NoPE):
    """One query of one head gives a masked key a weight, in one layer."""

    shared = False
    wrong = 0.125

    def normalise(self, logits: Tensor) -> Tensor:
        weights = logits.softmax(-1)
        if self.layer == 2:
            weights[0, 1, 3, 4] = self.wrong
        return weights


class NotFiniteOnce(SeesOnce):
    wrong = torch.nan


@pytest.mark.parametrize(
    ("cls", "check", "words"),
    [
        (LeaksOnce, "out_of_sight", "keys outside of `visible` change the output of layer 2"),
        (ColdOnce, "temperature", "layer 2 has a temperature below 0 or not finite within 256"),
        (BelowZeroOnce, "temperature", "layer 2 has a temperature below 0 or not finite within"),
        (SeesOnce, "normalise", "layer 2 gives attention weight to keys that are masked"),
        (NotFiniteOnce, "normalise", "layer 2 has attention weights that are not finite"),
        (Leaks, "out_of_sight", "keys outside of `visible` change the output of layer 0"),
        (Cold, "temperature", "layer 0 has a temperature below 0"),
        (Everywhere, "normalise", "layer 0 gives attention weight to keys that are masked"),
    ],
)
def test_checks_catch(cls: type[Encoding], check: str, words: str) -> None:
    assert words in str(CHECKS[check](Subject(cls)))


@pytest.mark.slow
@torch.no_grad()
def test_the_cache_keeps_what_can_be_seen() -> None:
    subject = Subject(Short)
    tokens = subject.tokens()
    caches = [Cache(2, 400), Cache(2, 400)]
    for cls, cache in zip((RoPE, Short), caches, strict=True):
        model = Subject(cls).model()
        model(tokens, cache)
        model(tokens[:, :1], cache)
    full, short = (cache.numbers_per_token for cache in caches)
    assert full == 2 * CONFIG.layers * CONFIG.width and short == full * 6 // 400


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "check"),
    [
        *((name, check) for name in NAMES for check in ("cache", "backends", "out_of_sight")),
        *((kind, check) for kind in KINDS for check in ("chunks", "ragged")),
    ],
)
@pytest.mark.usefixtures("four_layers")
def test_any_encoding_may_have_a_window(name: str, check: str) -> None:
    if check == "out_of_sight" and name in ("path", "selective-rope"):
        return  # short convolutions reach a few tokens further
    make = plugins.load("encoding", f"hybrid:local={name},global={name},window=9,every=3").make
    try:
        assert CHECKS[check](Subject(make)) is None
    except NotApplicable as claim:
        assert "prefix consistency" in str(claim)


@pytest.mark.slow
@torch.no_grad()
def test_a_hybrid_of_one_encoding_is_that_encoding() -> None:
    for name in ("rope", "alibi", "sinusoidal"):
        one = Subject(plugins.load("encoding", name).make).model()
        spec = f"hybrid:local={name},global={name}"
        two = Subject(plugins.load("encoding", spec).make).model()
        tokens = Subject(NoPE).tokens()
        if name == "sinusoidal":  # both add to the embeddings
            with pytest.raises(AssertionError):
                torch.testing.assert_close(one(tokens), two(tokens))
        else:
            torch.testing.assert_close(one(tokens), two(tokens))


@pytest.mark.slow
def test_layers_of_a_hybrid() -> None:
    config = ModelConfig(layers=8, heads=2, width=16, mlp_width=16, vocab_size=9)
    made = plugins.load("encoding", "hybrid:local=fox,global=rope:base=5e5,window=4").make
    model = Decoder(config, made)
    names = [type(model.encoding_of(i)).__name__ for i in range(8)]
    assert names == ["FoX", "FoX", "FoX", "RoPE"] * 2
    local = [model.encoding_of(i) for i in (0, 1, 2, 4, 5, 6)]
    assert len({id(one) for one in local}) == 6  # each layer has separate gates
    assert model.encoding_of(3) is model.encoding_of(7)
    assert {one.visible.window for one in local} == {4}
    assert model.encoding_of(3).visible.window is None
    shallow = Decoder(config.changed(layers=3), made)
    assert [type(shallow.encoding_of(i)).__name__ for i in range(3)] == ["FoX", "FoX", "RoPE"]


@pytest.mark.slow
def test_bad_hybrids() -> None:
    for spec, words in {
        "hybrid:every=0": "every must be at least 1",
        "hybrid:first=2": "first has no effect without a window or chunks",
        "hybrid:window=0": "window must be at least 1",
        "hybrid:globl=rope": "has no option 'globl' (did you mean 'global'?)",
        "log-temperature:base=hybrid": "Hybrid has several encodings: wrap each of them",
    }.items():
        with pytest.raises(InputError) as caught:
            plugins.load("encoding", spec).make(CONFIG, 0)
        assert words in str(caught.value), spec
    assert plugins.load("encoding", "hybrid:every=2,global=alibi").label == (
        "hybrid:global=alibi,every=2"
    )


def test_qk_norm_and_an_extra_loss() -> None:
    class Wide(NoPE):
        def extra_loss(self) -> Tensor:
            return torch.tensor(0.25)

    config = ModelConfig(layers=2, heads=2, width=16, mlp_width=16, vocab_size=9, qk_norm="rms")
    model = Decoder(config, Wide)
    assert float(model.extra_loss() or 0) == 0.25  # both layers share one encoding
    assert Decoder(config, NoPE).extra_loss() is None
    tokens = torch.arange(8)[None]
    before = model(tokens)
    with torch.no_grad():
        for block in model.layers:
            block.self_attn.q_proj.weight *= 10  # type: ignore[union-attr,operator]
    torch.testing.assert_close(model(tokens), before, rtol=1e-2, atol=1e-3)


def test_a_layer_has_the_positions_of_its_table_only() -> None:
    config = ModelConfig(layers=1, heads=2, width=16, mlp_width=16, train_length=8)
    layer = AttentionLayer(config, plugins.load("encoding", "learned:rows=8").make)
    layer.embed(torch.zeros(1, 8, 16))
    with pytest.raises(InputError, match="this encoding has positions 0 to 7, not 8"):
        layer.embed(torch.zeros(1, 9, 16))
    model = Decoder(config, plugins.load("encoding", "learned:rows=8").make)
    with pytest.raises(InputError, match="this encoding has positions 0 to 7, not -1"):
        model(torch.ones(1, 3).long(), positions=torch.tensor([[-1, 0, 1]]))
