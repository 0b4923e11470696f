"""Relatives of RoPE, compared with numbers of public implementations and with formulas."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pe_bench.config import ModelConfig
from pe_bench.decoder import hooks
from pe_bench.decoder.logits import attention_logits
from pe_bench.encodings.rope import geometric, rotate
from pe_bench.positions import Positions, in_order
from pe_bench.registry import plugins

SHAPE = ModelConfig(heads=3, width=24, train_length=64)


def make(spec: str, shape: ModelConfig = SHAPE, layer: int = 0) -> Any:
    return plugins.load("encoding", spec).make(shape, layer)


def logits(encoding: Any, q: Tensor, k: Tensor, ids: Tensor) -> Tensor:
    """Return logits as in attention, -inf where masked."""
    positions = Positions(ids, ids)
    q, k = hooks.transform_qk(encoding, q, k, positions)
    return attention_logits(q, k, hooks.logit_terms(encoding, positions, len(q)))


# PoPE


@torch.no_grad()
@pytest.mark.parametrize("ids", ["counted", "given"])
def test_pope(golden: Any, ids: str) -> None:
    arrays, encoding = golden("pope"), make("pope")
    encoding.load_state_dict({"shift": arrays["bias"]})
    assert not torch.equal(arrays["bias"], arrays["bias"].clamp(-2 * math.pi, 0))
    given = arrays["position_ids"] if ids == "given" else torch.arange(14)[None]
    ours = logits(encoding, arrays["q"], arrays["k"], given) * math.sqrt(8)
    visible = ours.isfinite()
    arrays.check(f"products_{ids}", ours, where=visible)
    theta = encoding.angles(torch.ones(1, 1))[0, 0, 0]
    arrays.check("inv_freq", theta.float())


@torch.no_grad()
def test_pope_is_its_formula() -> None:
    torch.manual_seed(0)
    encoding = make("pope:start=uniform,base=50").double()
    assert (encoding.shift < 0).all() and (encoding.shift > -2 * math.pi).all()
    q, k = torch.randn(2, 1, 3, 7, 8, dtype=torch.float64)
    ours = logits(encoding, q, k, torch.arange(7)[None])
    for head, i, j in ((0, 6, 0), (1, 3, 3), (2, 5, 4)):
        expected = 0.0
        for c in range(8):
            lengths = math.log1p(q[0, head, i, c].exp()) * math.log1p(k[0, head, j, c].exp())
            angle = (i - j) * 50 ** (-c / 8) - float(encoding.shift[head, c])
            expected += lengths * math.cos(angle) / math.sqrt(8)
        assert float(ours[0, head, i, j]) == pytest.approx(expected, rel=1e-6)


def test_pope_starts_from_zero() -> None:
    assert not make("pope").shift.any()


# Which frequencies turn


def rope(options: str, head_dim: int = 16, train_length: int = 256) -> Any:
    shape = ModelConfig(heads=2, width=2 * head_dim, train_length=train_length)
    return make(f"rope:{options}", shape)


def frequencies(options: str, head_dim: int = 16, train_length: int = 256) -> list[float]:
    """Return frequencies in float32, or in float64 if periods are whole numbers."""
    encoding = rope(options, head_dim, train_length)
    return encoding.frequencies(torch.device("cpu")).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("tag", "options"),
    [
        ("rope", "resonance=true"),
        ("yarn_s4_L32", "resonance=true,scaling=yarn,factor=4,original_length=32"),
    ],
)
def test_resonance(golden: Any, tag: str, options: str) -> None:
    arrays, encoding = golden("resonance"), rope(options)
    theta = torch.tensor(frequencies(options), dtype=torch.float64)
    arrays.check(f"{tag}.inv_freq", theta.float())
    arrays.check(f"{tag}.wavelengths", (2 * math.pi / theta).float())
    tables = encoding.tables(torch.arange(128)[None], torch.float32)
    for name, table in zip(("cos", "sin"), tables, strict=True):
        arrays.check(f"{tag}.{name}", table[0, 0])


def test_resonance_of_large_heads(golden: Any) -> None:
    theta = torch.tensor(frequencies("resonance=true,base=500000", 128), dtype=torch.float64)
    golden("resonance").check("big.rope.inv_freq", theta.float())


def test_resonance_repeats_after_a_million_tokens() -> None:
    encoding = rope("resonance=true")
    near, far = (encoding.tables(torch.tensor([[p]]), torch.float64) for p in (5, 5 + 6_000_000))
    torch.testing.assert_close(near[0][..., 0], far[0][..., 0], rtol=0, atol=1e-8)  # 6 tokens


@pytest.mark.parametrize(("length", "turns"), [(256, 1.0), (64, 1.0), (256, 2.5)])
def test_hope(length: int, turns: float) -> None:
    ours = frequencies(f"scaling=hope,turns={turns}", train_length=length)
    plain = [10_000 ** (-m / 8) for m in range(8)]
    expected = [t if t * length / (2 * math.pi) >= turns else 0 for t in plain]
    assert ours == pytest.approx(expected, rel=1e-6)
    assert 0 < sum(t > 0 for t in ours) < 8


def test_clipped() -> None:
    """The default is 20 of 64 planes; an option sets another number."""
    for planes, options, count in ((64, "", 20), (8, "", 2), (8, ",clipped=5", 5)):
        plain = [10_000 ** (-m / planes) for m in range(planes)]
        hard = plain[:-count] + count * [0.0]
        soft = list(plain)
        for t in range(count):
            soft[planes - count + t] *= (1 + math.cos(math.pi * t / (count - 1))) / 2
        ours = frequencies(f"scaling=clipped{options}", 2 * planes)
        assert ours == pytest.approx(soft, rel=1e-6, abs=1e-12)
        ours = frequencies(f"scaling=clipped,hard=true{options}", 2 * planes)
        assert ours == pytest.approx(hard, rel=1e-6)


@pytest.mark.parametrize(("share", "turns", "count"), [(0.5, 1.0, 4), (0.75, 3.0, 6)])
def test_rope_id(share: float, turns: float, count: int) -> None:
    ours = frequencies(f"scaling=rope-id,share={share},turns={turns}")
    slowest = 2 * math.pi * turns / 256
    expected = [slowest ** (m / (count - 1)) for m in range(count)] + (8 - count) * [0.0]
    assert ours == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "options", ["scaling=hope", "scaling=clipped", "scaling=rope-id", "resonance=true"]
)
def test_a_llama_has_no_selections(options: str) -> None:
    assert rope(options).llama_fields() is None and rope("base=500").llama_fields() is not None


# FoPE


@torch.no_grad()
def test_fope(golden: Any) -> None:
    arrays = golden("fope")
    encoding = make("fope", ModelConfig(heads=4, kv_heads=2, width=64, train_length=64))
    encoding.mixtures = torch.stack([arrays["cos_coef"], arrays["sin_coef"]])
    ids = arrays["position_ids"][None]
    q, k = (arrays[name].transpose(0, 1)[None] for name in "qk")
    made = hooks.transform_qk(encoding, q, k, Positions(ids, ids))
    for name, x in zip("qk", made, strict=True):
        arrays.check(f"{name}_map", x[0].transpose(0, 1))
    arrays.check("inv_freq", geometric(1e4, 8)[: encoding.kept])


@torch.no_grad()
def test_fope_of_the_paper_is_its_formula() -> None:
    """4 of 6 planes complete a turn. They are mixed into the first 3, a quarter of the channels."""
    torch.manual_seed(0)
    shape = ModelConfig(heads=2, width=24, train_length=64)
    encoding = make("fope:padding=one,outputs=capped,base=100", shape).double()
    assert encoding.mixtures.shape == (2, 2, 4, 3)
    q = torch.randn(1, 2, 9, 12, dtype=torch.float64)
    ours, _ = hooks.transform_qk(encoding, q, q, in_order(9, q.device))
    theta = [100 ** (-n / 6) for n in range(4)]
    for head, p, m in ((0, 8, 0), (1, 5, 2), (1, 7, 4)):
        cos, sin = 1.0, 1.0
        if m < 3:
            mixture = encoding.mixtures[:, head, :, m]
            cos = sum(float(mixture[0, n]) * math.cos(p * theta[n]) for n in range(4))
            sin = sum(float(mixture[1, n]) * math.sin(p * theta[n]) for n in range(4))
        x, y = float(q[0, head, p, m]), float(q[0, head, p, m + 6])
        assert float(ours[0, head, p, m]) == pytest.approx(x * cos - y * sin, rel=1e-6)
        assert float(ours[0, head, p, m + 6]) == pytest.approx(y * cos + x * sin, rel=1e-6)


def test_fope_without_noise_is_hope() -> None:
    """The mixture is an identity for all planes, or every second row of one for half of them."""
    encoding = make("fope:gain=0")
    q = torch.randn(1, 3, 30, 8)
    positions = in_order(30, q.device)
    hope = make("rope:scaling=hope").transform_qk(q, q, positions)
    torch.testing.assert_close(encoding.transform_qk(q, q, positions), hope)
    capped = make("fope:gain=0,outputs=capped", replace(SHAPE, train_length=10_000)).mixtures
    expected = torch.tensor([[1.0, 0], [0, 0], [0, 1], [0, 0]])
    assert torch.equal(capped, expected.expand(2, 3, 4, 2))


def test_the_noise_of_fope() -> None:
    shape = ModelConfig(heads=8, width=512, train_length=100_000)
    encoding = make("fope:gain=0.4", shape)
    kept = encoding.kept
    noise = encoding.mixtures - torch.eye(kept)
    std = 0.4 * math.sqrt(2 / (kept * (8 + kept)))
    assert float(noise.std()) == pytest.approx(std, rel=0.03) and kept == 32
    assert not list(encoding.parameters()) and "mixtures" in encoding.state_dict()
    assert [n for n, _ in make("fope:learned=true").named_parameters()] == ["mixtures"]
    assert not torch.equal(encoding.mixtures, make("fope:gain=0.4", shape, 1).mixtures)


# Positions that depend on the tokens


def chosen(encoding: Any, x: Tensor) -> Positions:
    """Return positions 0, 1, ... with the features of the tokens x."""
    positions = in_order(x.shape[1], x.device)
    features = hooks.token_features(encoding, x, positions)
    if features is None:
        return positions
    return replace(positions, features=hooks.scan_features(encoding, features))


@torch.no_grad()
def test_repo(golden: Any) -> None:
    """In float64: angles of up to 216 rad make float32 differ between processors."""
    arrays, encoding = golden("repo"), make("repo:lower=0")
    names = {"gate": "gate_map", "content": "content_map", "final": "final_map"}
    weights = {f"{ours}.weight": arrays[f"w.{name}.weight"] for ours, name in names.items()}
    encoding.load_state_dict(weights)
    encoding.double()
    positions = chosen(encoding, arrays["x"].double())
    assert positions.features is not None
    arrays.check("positions", positions.features[..., 0].float())
    made = encoding.transform_qk(arrays["q"].double(), arrays["k"].double(), positions)
    for name, x in zip("qk", made, strict=True):
        arrays.check(f"{name}_rot", x.float())


@pytest.mark.parametrize(("layers", "spec", "first"), [(16, "repo", 5), (4, "repo", 1)])
def test_the_lowest_layers_of_repo_have_rope(layers: int, spec: str, first: int) -> None:
    shape = replace(SHAPE, layers=layers)
    made = [make(spec, shape, layer) for layer in range(layers)]
    assert [encoding.chooses for encoding in made] == [i >= first for i in range(layers)]
    q, k = torch.randn(2, 1, 3, 9, 8)
    positions = chosen(made[0], torch.randn(1, 9, 24))
    rope = make("rope:base=500000").transform_qk(q, k, positions)
    torch.testing.assert_close(made[0].transform_qk(q, k, positions), rope)


def test_repo_starts_near_no_positions() -> None:
    positions = chosen(make("repo:lower=0"), torch.randn(2, 50, 24))
    assert positions.features is not None and 0 < positions.features.abs().max() < 0.01


@torch.no_grad()
def test_carope_is_its_formula() -> None:
    torch.manual_seed(0)
    encoding = make("carope:start=normal").double()
    encoding.projection.weight.normal_()
    assert encoding.projection.bias is None
    x = torch.randn(1, 9, 24, dtype=torch.float64)
    angles = chosen(encoding, x).features
    assert angles is not None
    for head, t, m in ((0, 8, 1), (1, 0, 3), (2, 5, 2), (2, 6, 0)):
        expected = 0.0
        for s in range(t + 1):
            z = float(x[0, s] @ encoding.projection.weight[head])
            expected += (1 / (1 + math.log1p(math.exp(z)))) ** m
        assert float(angles[0, head, t, m]) == pytest.approx(expected, rel=1e-9)
    q = torch.randn(1, 3, 9, 8, dtype=torch.float64)
    turned, _ = encoding.transform_qk(q, q, chosen(encoding, x))
    expected_q = rotate(q, angles.cos(), angles.sin())
    assert torch.equal(turned, expected_q)


@pytest.mark.parametrize("base", [10_000, 500])
def test_carope_starts_as_rope(base: int) -> None:
    encoding = make(f"carope:base={base}")
    q, k = torch.randn(2, 1, 3, 40, 8)
    positions = chosen(encoding, torch.randn(1, 40, 24))
    ours, plain = encoding.transform_qk(q, k, positions), make(f"rope:base={base}")
    # The first token is rotated once, not zero times, and all others once more.
    shifted = Positions(positions.query + 1, positions.key + 1)
    torch.testing.assert_close(ours, plain.transform_qk(q, k, shifted), rtol=0, atol=1e-4)


# All
