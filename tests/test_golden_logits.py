"""Encodings of 2024 to 2026 that rewrite logits, compared with published numbers and loops."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pe_bench.config import ModelConfig
from pe_bench.decoder import hooks
from pe_bench.decoder.attention import attend
from pe_bench.decoder.logits import LogitTerms, attention_logits
from pe_bench.encoding import Encoding
from pe_bench.encodings import wall
from pe_bench.encodings.alibi import ALiBi, slopes
from pe_bench.encodings.bam import BAM
from pe_bench.encodings.dapev2 import DAPEv2
from pe_bench.encodings.grape_a import GrapeA
from pe_bench.encodings.grape_ap import GrapeAP
from pe_bench.encodings.inkling import Inkling
from pe_bench.encodings.stick_breaking import StickBreaking
from pe_bench.encodings.wall import Wall
from pe_bench.positions import Positions
from pe_bench.registry import plugins

THREE = ModelConfig(heads=3, width=24, train_length=32, init_std=0.5)
FOUR = ModelConfig(heads=4, width=32, train_length=32, init_std=0.5)
FAR = 100_000


def at(length: int, features: Tensor | None = None, first: int = 0) -> Positions:
    ids = first + torch.arange(length)[None]
    return Positions(ids, ids, features=features, is_arange=first == 0)


def terms_of(encoding: Encoding, length: int, features: Tensor | None = None) -> LogitTerms:
    """Return the logit terms of an encoding, given its features after the scan."""
    rows = 1 if features is None else len(features)
    return hooks.logit_terms(encoding, at(length, features), rows)


def random(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def visible(logits: Tensor) -> Tensor:
    return logits.masked_fill(torch.ones(logits.shape[-2:]).triu(1).bool(), 0)


# Golden numbers


@torch.no_grad()
@pytest.mark.parametrize(("current", "name"), [(False, ""), (True, "_current")])
def test_stick_breaking(golden: Any, current: bool, name: str) -> None:
    arrays = golden("stick_breaking")
    q, k, v = (arrays[key] for key in "qkv")
    terms = terms_of(StickBreaking(THREE, attend_current=current), 14)
    for backend in ("eager", "blocked"):
        arrays.check(f"out{name}", attend(q, k, v, terms, backend=backend))
    own = attention_logits(q, k, terms).softmax(-1).diagonal(dim1=-2, dim2=-1)
    if not current:
        arrays.check(f"rem{name}", own)
    else:
        assert bool((own > arrays[f"rem{name}"]).all())  # the query's own token has a fraction, too


@torch.no_grad()
@pytest.mark.parametrize(
    ("gate", "name"), [("both", "querykeygated"), ("key", "keygated"), ("query", "querygated")]
)
def test_grape_a(golden: Any, gate: Any, name: str) -> None:
    arrays = golden("grape_a")
    q, k = (arrays[key].transpose(1, 2) for key in "qk")
    encoding = GrapeA(THREE, gate=gate)
    names = {"weight": "omega", "of_query": "v", "of_key": "u"}
    weights = {n: arrays[f"{name}.{names[n]}"] for n, _ in encoding.named_parameters()}
    encoding.load_state_dict(weights)
    none = torch.zeros(2, 3, 14, 14)
    bias = encoding.rewrite_logits(none, q, k, at(14))
    arrays.check(f"bias_{name}", bias, where=torch.ones(14, 14).tril().bool())


@torch.no_grad()
def test_grape_ap(golden: Any) -> None:
    arrays = golden("grape_ap")
    encoding = GrapeAP(THREE, dim=4)
    encoding.load_state_dict({"project.weight": arrays["w.c_p.weight"]})
    features = encoding.token_features(arrays["x"], at(14))
    terms = terms_of(encoding, 14, features)
    q, k, v = (arrays[key] for key in "qkv")
    arrays.check("bias", attention_logits(torch.zeros_like(q), k, terms))
    for backend in ("eager", "blocked"):
        arrays.check("out", attend(q, k, v, terms, backend=backend))


@torch.no_grad()
@pytest.mark.parametrize("chunk", [5, 16, 64])
@pytest.mark.parametrize(("scalar", "name"), [(False, "out"), (True, "out_scalar")])
def test_wall(
    golden: Any, scalar: bool, name: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wall, "CHUNK", chunk)
    arrays = golden("wall")
    q, k, v, gates = (arrays[key].transpose(1, 2) for key in ("q", "k", "v", "gate_logit"))
    if scalar:
        gates = torch.cat([gates, arrays["scalar_gate_logit"].mT[..., None]], dim=-1)
    encoding = Wall(FOUR, scalar_gate=scalar)
    terms = terms_of(encoding, 37, encoding.scan_features(F.logsigmoid(gates)))
    for backend in ("eager", "blocked"):
        arrays.check(name, attend(q, k, v, terms, backend=backend).transpose(1, 2))


@torch.no_grad()
@pytest.mark.parametrize(("floor", "name"), [(None, "out"), (5, "out_tau")])
def test_inkling(golden: Any, floor: int | None, name: str) -> None:
    arrays = golden("inkling")
    encoding = Inkling(THREE, rank=4, extent=6, floor=floor, strength=0.2)
    encoding.profiles.copy_(arrays["proj"])
    features = arrays["r"].transpose(1, 2)
    positions = at(14, features)
    if floor is None:
        arrays.check("bias", visible(encoding.bias(positions)), where=torch.ones(14, 14).tril() > 0)
    q, k = arrays["q"], arrays["k"]
    factors = encoding.temperature(positions)
    if factors is not None:
        q = q * factors[..., None]
    terms = terms_of(encoding, 14, features)
    for backend in ("eager", "sdpa", "blocked"):
        arrays.check(name, attend(q, k, arrays["v"], terms, backend=backend))


@torch.no_grad()
@pytest.mark.parametrize("base", ["alibi", "kerple", "fire"])
def test_dapev2(golden: Any, base: Any) -> None:
    """Each query has the logits that the published code gives to the last token of a text."""
    arrays, encoding = golden("dapev2"), DAPEv2(FOUR, base=base, hidden=6)
    names = {"bias_p": "base.p", "bias_a": "base.a", "c": "base.c", "init_L": ""}
    names |= {"L_multiplier": "base.multiplier", "mlp": "base.mlp"}
    weights = {}
    for key in arrays.arrays:
        prefix, _, rest = key.partition(".")
        if prefix != base or rest == "init_L":
            continue
        module, dot, parameter = rest.partition(".")
        if module == "mlp2":
            layer, _, parameter = parameter.partition(".")
            ours = {"0": "first", "2": "second"}[layer] + dot + parameter
        else:
            ours = names[module] + dot + parameter
        weights[ours] = arrays[key]
    shapes = {n: p.shape for n, p in encoding.named_parameters()}
    encoding.load_state_dict({n: w.reshape(shapes[n]) for n, w in weights.items()}, strict=False)
    assert weights.keys() == shapes.keys()
    if base == "fire":
        encoding.base.threshold = float(arrays["fire.init_L"])  # type: ignore[assignment]
    x = arrays["x"]
    adapted = encoding.rewrite_logits(x, x, x, at(12))
    arrays.check(f"last_rows_{base}", adapted, where=torch.ones(12, 12).tril().bool())
    last = torch.arange(12)[:, None] == 11
    arrays.check(f"whole_{base}", adapted, where=last)
    changed = (visible(adapted) - arrays[f"whole_{base}"])[:, :, :-1].abs().amax(dim=(0, 1, 3))
    assert bool((changed > 1e-3).all())  # all other queries of a whole text differ


# Against their definitions in plain loops, with gradients


def gradients_agree(results: tuple[Tensor, Tensor], inputs: list[Tensor]) -> None:
    torch.testing.assert_close(*results, rtol=0, atol=1e-11)
    weights = random(*results[0].shape, seed=9)
    found = [torch.autograd.grad((r * weights).sum(), inputs, retain_graph=True) for r in results]
    torch.testing.assert_close(*found, rtol=1e-8, atol=1e-11)


def test_stick_breaking_is_its_definition_with_gradients() -> None:
    q, k = (random(1, 2, 9, 4, seed=s).requires_grad_() for s in (1, 2))
    encoding = StickBreaking(ModelConfig(heads=2, width=8))
    shares = (q @ k.mT / 2).sigmoid()
    rows = []
    for i in range(9):
        left = torch.ones(1, 2, dtype=torch.float64)
        row = [torch.zeros_like(left) for _ in range(9)]
        for j in reversed(range(i)):  # the nearest first
            row[j] = left * shares[:, :, i, j]
            left = left * (1 - shares[:, :, i, j])
        row[i] = left
        rows.append(torch.stack(row, dim=-1))
    expected = torch.stack(rows, dim=-2)  # (1, 2, 9, 9)
    made = attention_logits(q, k, terms_of(encoding, 9)).softmax(-1)
    gradients_agree((made, expected), [q, k])


def test_stick_breaking_far_keys_are_finite_and_keep_their_gradient() -> None:
    """Weights far below the range of float32 are represented by their logits."""
    encoding = StickBreaking(ModelConfig(heads=1, width=4))
    q = torch.full((1, 1, 400, 4), 3.0, requires_grad=True)
    logits = attention_logits(q, torch.full((1, 1, 400, 4), 3.0), terms_of(encoding, 400))
    farthest = logits[0, 0, -1, 0]
    assert float(farthest.detach()) < -5000  # e^-5000
    farthest.backward()
    assert q.grad is not None and q.grad.isfinite().all() and q.grad.any()


@pytest.mark.parametrize("strength", [1.0, 200.0])
def test_wall_is_its_definition_with_gradients(
    strength: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds even for strong gates, for which e^-P would overflow."""
    monkeypatch.setattr(wall, "CHUNK", 4)
    encoding = Wall(ModelConfig(heads=2, width=8), scalar_gate=True).double()
    gates = random(1, 2, 15, 5)
    gates = F.logsigmoid(strength * gates).requires_grad_()
    q, k = (random(1, 2, 15, 4, seed=s).requires_grad_() for s in (1, 2))
    summed = gates.cumsum(dim=2)
    fade = summed[:, :, :, None] - summed[:, :, None]  # (1, 2, 15, 15, 5)
    fade = fade.masked_fill(torch.ones(15, 15).triu(1).bool()[..., None], -torch.inf)
    products = q[:, :, :, None] * k[:, :, None] * fade[..., :4].exp()
    expected = visible(products.sum(-1) / 2 + fade[..., 4])
    made = attention_logits(q, k, terms_of(encoding, 15, encoding.scan_features(gates)))
    gradients_agree((visible(made), expected), [q, k, gates])


def test_wall_with_open_gates_has_no_positions() -> None:
    encoding = Wall(FOUR)
    q, k = (random(2, 4, 40, 8, dtype=torch.float32, seed=s) for s in (1, 2))
    features = encoding.scan_features(torch.zeros(2, 4, 40, 8))
    made = attention_logits(q, k, terms_of(encoding, 40, features))
    torch.testing.assert_close(visible(made), visible(attention_logits(q, k)))


def test_wall_starts_with_gates_near_one() -> None:
    encoding = Wall(ModelConfig(heads=4, width=32), scalar_gate=True)
    features = encoding.token_features(random(1, 5, 32, dtype=torch.float32), at(5)).detach()
    assert features.shape == (1, 4, 5, 9)
    assert float(features.min()) > -1.5e-3 and float(features.max()) < 0


def test_wall_tells_neighbours_apart_after_100000_tokens() -> None:
    length = 100_000
    encoding = Wall(ModelConfig(heads=1, width=2))
    gates = -random(1, 1, length, 2, dtype=torch.float32).abs()
    features = encoding.scan_features(gates)
    end = torch.tensor([[length - 1]])
    ids = torch.arange(length)[None]
    positions = Positions(ids[:, -1:], ids, end, features=features)
    ones = torch.ones(1, 1, length, 2)
    logits = encoding.product(ones[:, :, -1:], ones, positions)
    expected = (1 + gates[0, 0, -1].double().exp().sum() - 1) / math.sqrt(2)
    torch.testing.assert_close(float(logits[0, 0, 0, -2]), float(expected), rtol=1e-6, atol=0)


def test_grape_ap_is_its_definition_with_gradients() -> None:
    encoding = GrapeAP(ModelConfig(heads=2, width=8, init_std=0.7), dim=4).double()
    x = random(1, 9, 8).requires_grad_()
    p = encoding.token_features(x, at(9))
    scores = random(1, 2, 9, 9, seed=3)
    made = visible(encoding.rewrite_logits(scores, scores, scores, at(9, p)))
    normed = p / (p.square().mean(dim=-1, keepdim=True) + torch.finfo(torch.float64).eps).sqrt()
    complex_p = torch.complex(p[..., :2], p[..., 2:])
    complex_n = torch.complex(normed[..., :2], normed[..., 2:])
    rows = []
    for i in range(9):
        row = []
        for j in range(9):
            total = torch.zeros(1, 2, dtype=torch.float64)
            for t in range(j + 1, i + 1):
                turned = complex_n[:, :, t] * torch.exp(
                    torch.tensor(-1j * t, dtype=torch.complex128)
                )
                product = (complex_p[:, :, i].conj() * turned).real.sum(dim=-1)
                total = total + F.logsigmoid(product / 4)
            row.append(total * torch.tensor(slopes(2)))
        rows.append(torch.stack(row, dim=-1))
    expected = visible(scores + torch.stack(rows, dim=-2))
    gradients_agree((made, expected), [x, encoding.project.weight])


def test_bam_is_its_formula_with_gradients() -> None:
    """The authors' code has no licence, so only the formula is compared."""
    encoding = BAM(FOUR, location=True).double()
    assert encoding.location is not None
    with torch.no_grad():
        for i, parameter in enumerate(encoding.parameters()):
            parameter.add_(random(4, seed=i))
    made = encoding.distance_bias(torch.arange(30))
    rows = []
    for h in range(4):
        mu = encoding.location[h].exp() - (-encoding.location[h]).exp()
        reach = ((torch.arange(30) - mu).abs() + 1e-5) ** encoding.shape[h]
        rows.append(-encoding.log_scale[h].exp() * reach)
    gradients_agree((made, torch.stack(rows)), list(encoding.parameters()))


def test_bam_starts_as_alibi() -> None:
    decay = ALiBi(FOUR).separable_bias(at(30))[0]
    start = BAM(FOUR).distance_bias(torch.arange(30))
    torch.testing.assert_close(start.double(), decay - decay[:, :1], rtol=1e-5, atol=1e-5)


def test_grape_a_starts_near_alibi() -> None:
    """If queries and keys are zero, both gates are ln 2, so slopes are 2 ln 2 times ALiBi's."""
    zeros = torch.zeros(1, 4, 9, 8)
    made = attention_logits(zeros, zeros, terms_of(GrapeA(FOUR), 9))
    decay = ALiBi(FOUR).separable_bias(at(9))[0]
    expected = (decay[:, :, None] - decay[:, None]) * 2 * math.log(2)
    torch.testing.assert_close(visible(made)[0].double(), visible(expected), rtol=1e-5, atol=1e-6)


def test_inkling_of_a_constant_query_is_a_bias_of_the_distance() -> None:
    encoding = Inkling(FOUR, rank=2, extent=4)
    features = torch.tensor([1.0, 0.0]).expand(1, 4, 7, 2)
    bias = encoding.bias(at(7, features))[0, 0, -1]
    expected = torch.cat([torch.zeros(3), encoding.profiles[0].flip(0)])
    torch.testing.assert_close(bias, expected)


def test_the_extent_of_inkling_is_a_quarter_of_the_training_length() -> None:
    assert [Inkling(FOUR).extent, Inkling(FOUR.changed(train_length=2)).extent] == [8, 1]


@torch.no_grad()
@pytest.mark.parametrize("spec", ["bam", "grape-a", "inkling:extent=20", "dapev2"])
def test_far_positions_keep_their_distances(spec: str) -> None:
    plugin = plugins.load("encoding", spec)
    encoding = plugin.cls(FOUR, **plugin.options)
    assert encoding.shift_invariant
    q, k, x = (random(1, 4, 30, 8, dtype=torch.float32, seed=s) for s in (1, 2, 3))
    features = encoding.token_features(x.transpose(1, 2).flatten(2), at(30))
    near, far = (
        attention_logits(q, k, hooks.logit_terms(encoding, at(30, features, first), 1))
        for first in (0, FAR)
    )
    torch.testing.assert_close(near, far, rtol=0, atol=0)
