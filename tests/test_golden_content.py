"""Encodings that depend on content, compared with published numbers and with plain loops."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_bench.config import ModelConfig
from pe_bench.decoder import blocked
from pe_bench.decoder.attention import attend
from pe_bench.decoder.layer import AttentionLayer
from pe_bench.decoder.logits import LogitTerms, attention_logits
from pe_bench.encoding import Encoding
from pe_bench.encodings import path
from pe_bench.encodings.cable import CABLE
from pe_bench.encodings.cope import CoPE
from pe_bench.encodings.fox import FoX
from pe_bench.encodings.path import PaTH
from pe_bench.positions import Positions
from pe_bench.registry import plugins
from pe_bench.visibility import Visibility

Open = Callable[[str], Any]
SHAPE = ModelConfig(heads=2, width=16, init_std=0.5)


def at(
    queries: int, keys: int, features: Tensor | None = None, index: Tensor | None = None
) -> Positions:
    """Return positions with equal ids, because these encodings do not use ids."""
    ids = torch.zeros(1, queries, dtype=torch.long), torch.zeros(1, keys, dtype=torch.long)
    return Positions(*ids, index, features=features)


def rewriting(
    encoding: Encoding, features: Tensor | None = None, index: Tensor | None = None
) -> LogitTerms:
    """Return the logits from the hook `product` or `rewrite_logits`."""

    def given(q: Tensor, k: Tensor) -> Positions:
        return at(q.shape[2], k.shape[2], features, index)

    def product(q: Tensor, k: Tensor, positions: Positions) -> Tensor:
        return encoding.product(q, k, given(q, k))

    def rewrite(scores: Tensor, q: Tensor, k: Tensor, positions: Positions) -> Tensor:
        return encoding.rewrite_logits(scores, q, k, given(q, k))

    terms = LogitTerms(at(0, 0, features, index))
    if encoding.overrides("product"):
        return replace(terms, product=product)
    return replace(terms, rewrite=rewrite)


def features_of(encoding: Encoding, x: Tensor) -> Tensor | None:
    return encoding.token_features(x, at(x.shape[1], x.shape[1]))


def scanned(encoding: Encoding, x: Tensor) -> Tensor:
    features = features_of(encoding, x)
    assert features is not None
    return encoding.scan_features(features)


def separable(encoding: Encoding, features: Tensor | None) -> Tensor:
    c = encoding.separable_bias(at(0, 0, features))
    assert c is not None
    return c


def differences(c: Tensor) -> Tensor:
    return (c[..., :, None] - c[..., None, :]).float()


def random(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


# Golden numbers


@pytest.mark.parametrize(("option", "name"), [("sum", "div"), ("scores", "nodiv")])
def test_cope(golden: Open, option: Any, name: str) -> None:
    arrays = golden("cope")
    q, k, v = (arrays[key][None] for key in "qkv")
    encoding = CoPE(ModelConfig(heads=3, width=24), npos=6, divide=option)
    encoding.load_state_dict({"table": arrays["pos_emb"]})
    with torch.no_grad():
        arrays.check(f"logits_{name}", attention_logits(q, k, rewriting(encoding))[0])
        arrays.check(f"out_{name}", attend(q, k, v, rewriting(encoding))[0])


@torch.no_grad()
def test_cope_positions(golden: Open) -> None:
    """With e[p] = p in the first channel and queries of this channel only, the bias is p."""
    arrays = golden("cope")
    q, k = arrays["q"][None].double(), arrays["k"][None].double()
    encoding = CoPE(ModelConfig(heads=3, width=24), npos=17, divide="scores").double()
    encoding.table[0] = torch.arange(17)
    scores = q @ k.mT / math.sqrt(8)
    only_first = F.one_hot(torch.tensor(0), 8).double().expand_as(q)
    p = encoding.rewrite_logits(scores, only_first, k, at(16, 16)) - scores
    arrays.check("positions_unclamped", p[0].float())
    arrays.check("gates", -p[0].diff(dim=-1, append=torch.zeros(3, 16, 1)).float())


def test_cable(golden: Open) -> None:
    arrays = golden("cable")
    encoding = CABLE(ModelConfig(heads=4, width=32), scaled=False)
    encoding.load_state_dict(
        {"gate_weight": arrays["w.h_attn.weight"], "gate_bias": arrays["w.h_attn.bias"]}
    )
    x = arrays["x"]
    qkv = F.linear(x, arrays["w.c_attn.weight"], arrays["w.c_attn.bias"])
    q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in qkv.chunk(3, dim=-1))
    with torch.no_grad():
        features = scanned(encoding, x)
        c = separable(encoding, features)
        arrays.check("bias", differences(c))
        terms = LogitTerms(separable=c, divide=encoding.divide_scores)
        for backend in ("eager", "sdpa"):
            mixed = attend(q, k, v, terms, backend=backend).transpose(1, 2).flatten(2)
            out = F.linear(mixed, arrays["w.c_proj.weight"], arrays["w.c_proj.bias"])
            arrays.check("out", out)


def test_fox(golden: Open) -> None:
    arrays = golden("fox")
    q, k, v = (arrays[key].transpose(1, 2) for key in "qkv")
    encoding = FoX(ModelConfig(heads=3, width=24))
    # W selects the first channels of x, which hold the logits of the gates.
    encoding.load_state_dict({"gate_weight": torch.eye(3, 24), "gate_bias": torch.zeros(3)})
    with torch.no_grad():
        features = features_of(encoding, F.pad(arrays["fgate_logit"], (0, 21)))
        assert features is not None
        arrays.check("log_fgate", features[..., 0].mT)
        c = separable(encoding, encoding.scan_features(features))
        arrays.check("bias", differences(c))
        for backend in ("eager", "sdpa"):
            out = attend(q, k, v, LogitTerms(separable=c), backend=backend)
            arrays.check("out", out.transpose(1, 2))


@pytest.mark.parametrize("chunk", [5, 64])
def test_path(golden: Open, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path, "CHUNK", chunk)
    arrays = golden("path")
    q, k, v, w = (arrays[key].transpose(1, 2) for key in "qkvw")
    beta = arrays["beta"].mT[..., None]
    gate = arrays["g"].mT[..., None]
    features = torch.cat([w, beta, gate], dim=-1)
    plain, gated = PaTH(SHAPE), PaTH(SHAPE, gate="fla")
    terms = rewriting(plain, features[..., :-1])
    assert plain.separable_bias(at(0, 0, features[..., :-1])) is None
    arrays.check("logits_nogate", attention_logits(q, k, terms))
    arrays.check("out_nogate", attend(q, k, v, terms).transpose(1, 2))
    c = separable(gated, features)
    out = attend(q, k, v, replace(rewriting(gated, features), separable=c))
    arrays.check("out_gate_fla", out.transpose(1, 2))
    torch.testing.assert_close(separable(PaTH(SHAPE, gate="fox"), features), c * math.sqrt(8))


# PaTH against its definition


def path_by_definition(encoding: PaTH, x: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Return k_j^T H_{j+1} ... H_i q_i / sqrt(D), computed reflection by reflection."""
    heads, dim, length = q.shape[1], q.shape[3], q.shape[2]
    low_rank = x @ encoding.down.weight.T @ encoding.up.weight.T
    taps = encoding.taps.reshape(heads * dim, 1, 3)
    mixed = F.conv1d(F.pad(low_rank.mT, (2, 0)), taps, groups=heads * dim)
    w = F.silu(mixed).unflatten(1, (heads, dim)).mT
    w = w / w.norm(dim=-1, keepdim=True)
    beta = 2 * torch.sigmoid(encoding.strength(x)).mT[..., None]
    columns = []
    for j in reversed(range(length)):  # q[i >= j] has the reflections of the tokens after j
        columns.append((q @ k[:, :, j, :, None])[..., 0])
        now = w[:, :, j, None]
        met = torch.arange(length)[:, None] >= j
        q = torch.where(met, q - beta[:, :, j, None] * (q @ now.mT) * now, q)
    logits = torch.stack(columns[::-1], dim=-1) / math.sqrt(dim)
    return logits.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)


@pytest.mark.parametrize("consecutive", [True, False])
def test_path_is_its_definition_with_gradients(
    consecutive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries are all tokens in their order, or tokens at any places."""
    monkeypatch.setattr(path, "CHUNK", 8)  # three chunks, the last one in part
    torch.manual_seed(0)
    encoding = PaTH(SHAPE, rank=3).double()
    x, weights = random(1, 20, 16), random(1, 2, 20, 20).tril()
    q, k = random(1, 2, 20, 8, seed=1), random(1, 2, 20, 8, seed=2)
    inputs = [t.requires_grad_() for t in (x, q, k)] + list(encoding.parameters())
    features = scanned(encoding, x)
    places = torch.arange(20) if consecutive else torch.arange(20).roll(7)
    index = None if consecutive else places[None]
    results = (
        attention_logits(q[:, :, places], k, rewriting(encoding, features, index)),
        path_by_definition(encoding, x, q, k)[:, :, places],
    )
    torch.testing.assert_close(*results, rtol=0, atol=1e-12)
    gradients = (
        torch.autograd.grad((r.masked_fill(r.isinf(), 0) * weights).sum(), inputs) for r in results
    )
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("window", [None, 30])
@pytest.mark.parametrize("tokens", [45, 50])
def test_path_in_blocks_is_the_same(
    tokens: int, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries of a block are consecutive, and a chunk begins with the first of them."""
    monkeypatch.setattr(path, "CHUNK", 8)
    monkeypatch.setitem(blocked.MAX_QUERIES, "cpu", 20)
    torch.manual_seed(0)
    layer = AttentionLayer(SHAPE, PaTH).double()
    layer.encoding.visible = Visibility(window)
    results = []
    for backend in ("eager", "blocked"):
        x = random(1, tokens, 16).requires_grad_()
        out, _ = layer.attend(x, backend=backend)
        inputs = [x, *layer.parameters()]
        results.append([out, *torch.autograd.grad((out * random(*out.shape)).sum(), inputs)])
    torch.testing.assert_close(*results, rtol=0, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("falling", [True, False])
@pytest.mark.parametrize(("spread", "tolerance"), [(1.0, 2e-6), (0.05, 3e-5)])
def test_path_in_float32_at_2048_tokens(spread: float, tolerance: float, falling: bool) -> None:
    """Measured: 6e-7 for random w; 5e-6 (Xeon) or 1.2e-5 (EPYC) if they nearly coincide."""
    encoding, length = PaTH(ModelConfig(heads=1, width=64)), 2048
    common = 0 if spread == 1 else random(1, 1, 1, 64)
    w = F.normalize(common + spread * random(1, 1, length, 64, seed=1), dim=-1)
    beta = 2 * random(1, 1, length, 1, seed=2).sigmoid() if spread == 1 else 1.99
    beta = torch.zeros_like(w[..., :1]) + beta
    last = torch.arange(length - 200, length)[None]  # the longest ways
    q, k = (random(1, 1, n, 64, seed=n).float() for n in (200, length))
    logits = []
    for dtype in (torch.float32, torch.float64):
        rounded = w.float().to(dtype)
        features = torch.cat([rounded, beta.float().to(dtype)], dim=-1)
        positions = at(200, length, features, last.flip(1) if falling else last)
        positions = replace(positions, is_reversed_suffix=falling)
        made = encoding.product(
            q.to(dtype).flip(2) if falling else q.to(dtype), k.to(dtype), positions
        )
        logits.append(made.flip(2) if falling else made)
    single, double = logits
    seen = torch.ones(200, length, dtype=torch.bool).tril(length - 200)
    error = (single - double)[..., seen].abs().max() / double[..., seen].abs().max()
    assert 1e-8 < error < tolerance


def test_path_starts_with_projections_of_length_one_and_beta_one() -> None:
    encoding = PaTH(ModelConfig(heads=2, width=16, init_std=1e-4), gate="fox")
    features = scanned(encoding, random(1, 9, 16).float())
    w, beta, log_gate = features.tensor_split([8, 9], dim=-1)
    torch.testing.assert_close(w.norm(dim=-1), torch.ones(1, 2, 9))
    torch.testing.assert_close(beta, torch.ones_like(beta), rtol=0, atol=1e-2)
    torch.testing.assert_close(log_gate, torch.full_like(beta, -math.log(2)), rtol=0, atol=1e-2)


def test_path_takes_the_empty_columns_of_a_cache() -> None:
    """Zeros have no direction, but nothing becomes NaN."""
    encoding = PaTH(SHAPE).double()
    empty = torch.zeros(1, 2, 5, 9, dtype=torch.float64, requires_grad=True)
    made = encoding.scan_features(empty)
    made.sum().backward()
    assert not made.any() and empty.grad is not None and empty.grad.isfinite().all()


# The gates of FoX and CABLE


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["gate_bias", "gate_weight"]),
        ({"gate": "bias_only", "shortest": 2.0, "longest": 64.0}, ["gate_bias"]),
        ({"gate": "fixed", "shortest": 2.0, "longest": 64.0}, []),
    ],
)
def test_fox_learns(options: dict[str, Any], names: list[str]) -> None:
    encoding = FoX(SHAPE, **options)
    assert sorted(name for name, _ in encoding.named_parameters()) == names
    assert "gate_bias" in encoding.state_dict()  # a checkpoint stores a fixed gate


@pytest.mark.parametrize("gate", ["full", "bias_only", "fixed"])
@pytest.mark.parametrize(
    ("options", "log_gates"),
    [
        ({}, [-math.log(2)] * 3),
        ({"bias_init": 5.0}, [-math.log1p(math.exp(-5))] * 3),
        ({"shortest": 0.01, "longest": 1e6}, [-100, -1e-2, -1e-6]),
    ],
)
def test_fox_starts_from(gate: Any, options: dict[str, Any], log_gates: list[float]) -> None:
    encoding = FoX(ModelConfig(heads=3, width=12), gate=gate, **options)
    features = features_of(encoding, torch.zeros(2, 4, 12))
    assert features is not None
    expected = torch.tensor(log_gates)[:, None, None].expand(2, 3, 4, 1)
    torch.testing.assert_close(features, expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize(("cls", "before"), [(FoX, 0), (PaTH, 9)])
def test_gates_tell_neighbours_apart_after_100000_tokens(cls: Any, before: int) -> None:
    features = -random(1, 2, 100_000, 1, dtype=torch.float32).abs()
    encoding = FoX(SHAPE) if cls is FoX else PaTH(SHAPE, gate="fox")
    c = separable(encoding, encoding.scan_features(F.pad(features, (before, 0))))
    torch.testing.assert_close(c.diff(), features[:, :, 1:, 0].double(), rtol=0, atol=1e-9)


def test_cable_is_fox_with_the_opposite_gate() -> None:
    x, cable, fox = random(2, 9, 16).float(), CABLE(SHAPE), FoX(SHAPE)
    fox.load_state_dict({name: -value for name, value in cable.state_dict().items()})
    features = features_of(cable, x)
    assert features is not None and cable.gate_weight is not None
    torch.testing.assert_close(features, features_of(fox, x), rtol=0, atol=0)
    expected = -F.softplus(F.linear(x, cable.gate_weight, cable.gate_bias)).mT[..., None]
    torch.testing.assert_close(features, expected)


@pytest.mark.parametrize("scaled", [True, False])
def test_cable_divides_scores_by_default(scaled: bool) -> None:
    assert CABLE(SHAPE, scaled=scaled).divide_scores is scaled and CABLE(SHAPE).divide_scores
    q, k = random(1, 2, 5, 8), random(1, 2, 5, 8, seed=1)
    logits = attention_logits(q, k, LogitTerms(divide=scaled))
    expected = q @ k.mT / (math.sqrt(8) if scaled else 1)
    torch.testing.assert_close(logits.tril(), expected.tril())


# CoPE


def test_cope_starts_as_no_encoding() -> None:
    q, k = random(1, 2, 5, 8), random(1, 2, 5, 8, seed=1)
    encoding = CoPE(SHAPE)
    assert encoding.table.shape == (8, SHAPE.train_length + 1)
    assert torch.equal(attention_logits(q, k, rewriting(encoding.double())), attention_logits(q, k))


@torch.no_grad()
def test_cope_counts_no_further_than_its_table() -> None:
    """Open gates count tokens, and distance 0 counts as 1."""
    encoding = CoPE(ModelConfig(heads=1, width=1), npos=4, divide="scores").double()
    encoding.table[0] = torch.tensor([7.0, 1.0, 10.0, 100.0])
    q, k = torch.ones(1, 1, 5, 1).double(), torch.full((1, 1, 5, 1), 50.0).double()
    last = attention_logits(q, k, rewriting(encoding))[0, 0, -1] - 50
    torch.testing.assert_close(last, torch.tensor([100.0, 100, 100, 10, 1]).double())


@pytest.mark.slow
def test_cope_gradient_through_the_fraction() -> None:
    encoding = CoPE(SHAPE, npos=4).double()
    nn.init.normal_(encoding.table)
    q, k = (random(1, 2, 4, 8, seed=s).requires_grad_() for s in (1, 2))
    unseen = torch.ones(4, 4).triu(1).bool()

    def logits(q: Tensor, k: Tensor, table: Tensor) -> Tensor:
        return attention_logits(q, k, rewriting(encoding)).masked_fill(unseen, 0)

    assert torch.autograd.gradcheck(logits, (q, k, encoding.table))


# All


ROWS_OF_A_CACHE = ["cope:npos=4", "path", "path:gate=fox", "fox", "cable"]
ROWS_OF_A_CACHE += ["stick-breaking", "wall:scalar_gate=true", "grape-ap", "dapev2"]


@torch.no_grad()
@pytest.mark.parametrize("spec", ROWS_OF_A_CACHE)
def test_what_follows_a_query_has_no_influence(spec: str) -> None:
    """Rows of a cache end at different columns; the columns after them hold any values."""
    plugin = plugins.load("encoding", spec)
    torch.manual_seed(0)
    encoding = plugin.cls(SHAPE, 0, **plugin.options).double()
    for parameter in encoding.parameters():
        parameter.normal_()
    x, q, k = random(2, 90, 16), random(2, 2, 90, 8, seed=1), random(2, 2, 90, 8, seed=2)
    index = torch.tensor([[3, 4], [71, 72]])

    def logits(features: Tensor | None, q: Tensor, k: Tensor, index: Tensor | None) -> Tensor:
        if features is not None:
            features = encoding.scan_features(features)
        c = encoding.separable_bias(at(q.shape[2], k.shape[2], features, index))
        terms = rewriting(encoding, features, index)
        return attention_logits(q, k, replace(terms, separable=c))

    features = features_of(encoding, x)
    full = logits(features, q, k, None)
    stale = torch.arange(90) > index[:, 1:]
    if features is not None:
        features = features.masked_fill(stale[:, None, :, None], -30)
    rows = torch.arange(2)[:, None]
    some = logits(
        features,
        q.transpose(1, 2)[rows, index].transpose(1, 2),
        k.masked_fill(stale[:, None, :, None], 1e3),
        index,
    )
    expected = full.transpose(1, 2)[rows, index].transpose(1, 2)
    torch.testing.assert_close(some, expected, rtol=0, atol=1e-11)
