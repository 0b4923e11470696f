"""Biases and learned tables, compared with numbers of public implementations."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from pe_bench.config import ModelConfig
from pe_bench.decoder.attention import attend
from pe_bench.decoder.logits import LogitTerms, attention_logits
from pe_bench.decoder.model import Decoder
from pe_bench.encoding import Encoding
from pe_bench.encodings.alibi import ALiBi
from pe_bench.encodings.dape import DAPE
from pe_bench.encodings.fire import FIRE
from pe_bench.encodings.kerple import Kerple
from pe_bench.encodings.learned import Learned
from pe_bench.encodings.sandwich import Sandwich
from pe_bench.encodings.t5 import T5
from pe_bench.errors import InputError
from pe_bench.positions import Positions
from pe_bench.registry import plugins

HEAD_COUNTS = [1, 2, 4, 6, 8, 12, 16, 20, 32, 40]
BUCKETS = [(32, 128), (64, 128), (32, 512), (32, 2048), (16, 64)]
FOUR = ModelConfig(heads=4, width=64)
TWELVE = ModelConfig(heads=12, width=96)
FAR = 100_000


def ids(length: int, first: int = 0) -> Tensor:
    return first + torch.arange(length)[None]


def causal(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


def at(length: int, first: int = 0) -> Positions:
    return Positions(ids(length, first), ids(length, first))


def pair_bias(encoding: Encoding, positions: Positions) -> Tensor:
    bias = encoding.bias(positions)
    assert bias is not None
    return bias


def rewritten(encoding: Encoding, scores: Tensor, first: int = 0) -> Tensor:
    """Return the result of `rewrite_logits`; these encodings use neither q nor k."""
    return encoding.rewrite_logits(scores, scores, scores, at(scores.shape[-1], first))


def difference(decay: Tensor) -> Tensor:
    """Return the bias c_i - c_j of c, (B, H, S), as in the engine."""
    return decay[..., :, None] - decay[..., None, :]


def load(encoding: Encoding, weights: dict[str, Tensor]) -> None:
    """Copy golden weights into all parameters."""
    parameters = dict(encoding.named_parameters())
    assert parameters.keys() == weights.keys()
    with torch.no_grad():
        for name, weight in weights.items():
            assert parameters[name].numel() == weight.numel()
            parameters[name].copy_(weight.reshape(parameters[name].shape))


# ALiBi


@pytest.mark.parametrize("heads", HEAD_COUNTS)
def test_alibi_slopes(golden: Any, heads: int) -> None:
    decay = ALiBi(ModelConfig(width=8 * heads, heads=heads)).separable_bias(at(2))[0]
    golden("alibi").check(f"slopes_{heads}", decay[:, 0] - decay[:, 1])


@pytest.mark.parametrize("first", [0, FAR])
@pytest.mark.parametrize("heads", [8, 12])
def test_alibi_bias(golden: Any, heads: int, first: int) -> None:
    decay = ALiBi(ModelConfig(width=96, heads=heads)).separable_bias(at(16, first))
    bias = difference(decay)[0].float()
    golden("alibi").check(f"neox_bias_{heads}", bias, where=causal(16))


@torch.no_grad()
def test_alibi_of_the_authors_differs_by_what_softmax_ignores(golden: Any) -> None:
    arrays, generator = golden("alibi"), torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 8, 16, 4, generator=generator)
    decay = ALiBi(ModelConfig(heads=8, width=32)).separable_bias(at(16))
    bias = difference(decay)[0].float()
    arrays.check("official_row_bias_8", bias[:, -1:] - bias[:, -1:, :1])
    official = arrays["official_row_bias_8"].expand(8, 16, 16)[None]
    theirs = attend(q, k, v, LogitTerms(bias=lambda _: official))
    torch.testing.assert_close(
        attend(q, k, v, LogitTerms(separable=decay)), theirs, rtol=0, atol=1e-5
    )


def test_alibi_slope_scale() -> None:
    plain, scaled = (ALiBi(FOUR, slope_scale=s).separable_bias(at(9)) for s in (1.0, 96.0))
    assert torch.equal(scaled, 96 * plain)


# T5


def buckets_of(encoding: T5, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """Return the bucket of each pair, (T, S), with the index of a bucket as its bias."""
    numbers = torch.arange(len(encoding.table)).float()[:, None]
    load(encoding, {"table": numbers.expand_as(encoding.table)})
    return pair_bias(encoding, Positions(query_positions, key_positions))[0, 0].long()


@pytest.mark.parametrize(("buckets", "max_distance"), BUCKETS)
def test_t5_buckets(golden: Any, buckets: int, max_distance: int) -> None:
    arrays = golden("t5_buckets")
    encoding = T5(FOUR, buckets=buckets, max_distance=max_distance)
    ours = buckets_of(encoding, arrays["distance"][None], torch.zeros(1, 1).long())
    arrays.check(f"causal_nb{buckets}_md{max_distance}", ours[:, 0])


def test_t5_buckets_are_half_of_the_encoder_s(golden: Any) -> None:
    """They are those of earlier keys; the other half is for later keys, which are masked."""
    arrays = golden("t5_buckets")
    relative = arrays["rel_bidir"]
    encoding = T5(FOUR, buckets=16, max_distance=128)
    ours = buckets_of(encoding, torch.tensor([[300]]), 300 + relative[None])
    arrays.check("bidir_nb32_md128", ours[0], where=relative <= 0)


def test_t5_bias(golden: Any) -> None:
    arrays = golden("t5_bias")
    arrays.check("bucket", buckets_of(T5(FOUR), ids(16), ids(16)))
    encoding = T5(FOUR)
    load(encoding, {"table": arrays["embedding"]})
    arrays.check("bias", pair_bias(encoding, at(16))[0].detach())


@pytest.mark.parametrize(("buckets", "max_distance"), [*BUCKETS, (2, 2), (7, 100), (128, 4096)])
def test_t5_buckets_never_fall(buckets: int, max_distance: int) -> None:
    encoding = T5(FOUR, buckets=buckets, max_distance=max_distance)
    found = buckets_of(encoding, ids(FAR + 1), torch.zeros(1, 1).long())[:, 0]
    assert found.diff().min() == 0
    assert (int(found[0]), int(found[-1])) == (0, buckets - 1)
    assert (found[max_distance:] == buckets - 1).all()
    assert torch.equal(found[: buckets // 2 + 1], torch.arange(buckets // 2 + 1))


@pytest.mark.parametrize(("buckets", "first"), [(32, 113), (64, 123)])
def test_t5_last_bucket(buckets: int, first: int) -> None:
    found = buckets_of(T5(FOUR, buckets=buckets), ids(200), torch.zeros(1, 1).long())[:, 0]
    assert int((found == buckets - 1).nonzero()[0]) == first


@pytest.mark.parametrize("scaled", [True, False])
def test_t5_unscaled_scores(scaled: bool) -> None:
    q, k = torch.randn(2, 1, 4, 9, 16, dtype=torch.float64)
    encoding = T5(FOUR, scaled=scaled)
    logits = attention_logits(q, k, LogitTerms(divide=encoding.divide_scores))
    expected = q @ k.mT / (4 if scaled else 1)
    torch.testing.assert_close(logits.tril(), expected.tril())


@pytest.mark.parametrize("std", [0.02, 0.3])
@torch.no_grad()
def test_t5_initial_table(std: float) -> None:
    table = T5(ModelConfig(heads=64, width=64, init_std=std)).table
    assert table.mean().abs() < 0.1 * std and table.std() == pytest.approx(std, rel=0.1)


# KERPLE


@pytest.mark.parametrize(
    ("form", "result", "weights"),
    [
        ("log", "out_log", {"p": "log_p_raw", "a": "log_a_raw"}),
        ("power", "out_power", {"p": "pow_p_raw", "a": "pow_a_raw"}),
        (
            "power-weighted",
            "out_power_with_weight_kernel",
            {"p": "pow3_p", "a": "pow3_a", "weight_p": "pow3_wp", "weight_a": "pow3_wa"},
        ),
    ],
)
def test_kerple(golden: Any, form: Any, result: str, weights: dict[str, str]) -> None:
    arrays, encoding = golden("kerple"), Kerple(FOUR, form=form)
    load(encoding, {name: arrays[key] for name, key in weights.items()})
    bias = encoding.bias(at(16))
    assert (bias is None) == encoding.overrides("rewrite_logits") == (form == "power-weighted")
    scores = arrays["x"] if bias is None else arrays["x"] + bias
    arrays.check(result, rewritten(encoding, scores).detach())


@pytest.mark.parametrize("form", ["log", "power", "power-weighted"])
def test_kerple_puts_parameters_back_into_their_range(form: Any) -> None:
    encoding = Kerple(FOUR, form=form)
    low, high, inside = -0.5, 2.5, 0.7
    load(encoding, {n: torch.tensor([low, high, inside, 1.0]) for n, _ in named(encoding)})
    out = bias_of(encoding, 12)
    bias_of(encoding, 7)  # a second forward before the backward of the first
    out.sum().backward()
    for name, parameter in named(encoding):
        highest = 2.0 if name.endswith("p") and form != "log" else high
        assert parameter.tolist() == pytest.approx([0.01, highest, inside, 1.0])
        # At the edge, too, where plain clamping in the forward pass would have no gradient.
        assert parameter.grad is not None and bool((parameter.grad != 0).all())
        assert bool(parameter.grad.isfinite().all())  # also at distance 0, despite the logarithm


def named(encoding: Encoding) -> list[tuple[str, torch.nn.Parameter]]:
    return list(encoding.named_parameters())


def bias_of(encoding: Encoding, length: int, first: int = 0) -> Tensor:
    """Return the bias of an encoding, from `separable_bias`, `bias` or `rewrite_logits`."""
    scores = torch.ones(1, encoding.model.heads, length, length)
    bias = encoding.bias(at(length, first))
    decay = encoding.separable_bias(at(length, first))
    for part in (bias, None if decay is None else difference(decay)):
        scores = scores if part is None else scores + part
    return rewritten(encoding, scores, first)


@pytest.mark.parametrize("form", ["log", "power", "power-weighted"])
@torch.no_grad()
def test_kerple_initial_values(form: Any) -> None:
    encoding = Kerple(ModelConfig(heads=2048, width=2048), form=form)
    assert len(named(encoding)) == (4 if form == "power-weighted" else 2)
    for name, parameter in named(encoding):
        top = 2.0 if name.endswith("p") else 1.0
        assert 0 <= parameter.min() < 0.01 * top and 0.99 * top < parameter.max() <= top
        assert parameter.mean() == pytest.approx(top / 2, rel=0.05)


@torch.no_grad()
def test_only_the_weighted_kerple_is_slow() -> None:
    tokens = torch.randint(260, (1, 8))
    for form in ("log", "power", "power-weighted"):
        model = Decoder(ModelConfig(layers=1), partial(Kerple, form=form))
        if form == "power-weighted":
            with pytest.raises(
                InputError, match="sdpa is not possible here: the encoding rewrites"
            ):
                model(tokens, backend="sdpa")
        else:
            model(tokens, backend="sdpa")


# FIRE


def test_fire(golden: Any) -> None:
    arrays = golden("fire")
    sizes = {key: float(arrays[key]) for key in ("eps", "init_L")}
    encoding = FIRE(FOUR, width=8, eps=sizes["eps"], threshold=sizes["init_L"])
    names = {"c": "c", "multiplier": "L_multiplier", "mlp.0.weight": "w1", "mlp.0.bias": "b1"}
    names |= {"mlp.2.weight": "w2", "mlp.2.bias": "b2"}
    load(encoding, {ours: arrays[theirs] for ours, theirs in names.items()})
    arrays.check("bias", encoding.bias(at(20))[0].detach(), where=causal(20))


@torch.no_grad()
def test_fire_sees_distances_before_the_threshold_and_shares_after() -> None:
    encoding = FIRE(FOUR, threshold=50.0)
    # Positions 0 to 19, 30 to 49, 32 to 51.
    near, shifted, beyond = (encoding.bias(at(20, n)) for n in (0, 30, 32))
    assert torch.equal(near, shifted)
    assert torch.equal(near[:, :, :-1], beyond[:, :, :-1])
    assert (near[:, :, -1] - beyond[:, :, -1]).abs().max() > 1e-5
    halves = encoding.bias(Positions(torch.tensor([[FAR, 2 * FAR]]), torch.tensor([[0]])))
    torch.testing.assert_close(halves[:, :, 0], halves[:, :, 1])  # at the longest distance


@torch.no_grad()
def test_fire_takes_absolute_values_of_what_it_learns() -> None:
    encoding = FIRE(FOUR, threshold=20.0)
    before = encoding.bias(at(30))
    for parameter in (encoding.c, encoding.multiplier):
        parameter.neg_()
    assert torch.equal(encoding.bias(at(30)), before)


@pytest.mark.parametrize("activation", ["relu", "leaky-relu"])
def test_fires_lines_are_its_mlp(activation: Any) -> None:
    encoding = FIRE(FOUR, activation=activation).double()
    with torch.no_grad():
        cast(nn.Linear, encoding.mlp[0]).weight[:3] = 0  # units that never switch, on and off
    x = torch.linspace(-2, 2, 500, dtype=torch.float64, requires_grad=True)
    results = []
    mlp = encoding.mlp(x[:, None])
    for out in (mlp.T, encoding.lookup(x)):
        parameters = list(encoding.mlp.parameters())
        weights = torch.randn(4, 500, generator=torch.Generator().manual_seed(0))
        results.append([out, *torch.autograd.grad((out * weights).sum(), [x, *parameters])])
    torch.testing.assert_close(results[1], results[0])


@torch.no_grad()
def test_fire_initial_values() -> None:
    torch_default, normal = FIRE(FOUR), FIRE(FOUR, init="normal")
    for encoding in (torch_default, normal):
        assert [float(encoding.c), float(encoding.multiplier)] == pytest.approx([0.1, 1.0])
    weights = {name: p for name, p in named(normal) if name.startswith("mlp")}
    assert not weights["mlp.0.bias"].any() and not weights["mlp.2.bias"].any()
    assert weights["mlp.2.weight"].std() == pytest.approx(0.02, rel=0.3)
    assert 0 < normal.bias(at(50)).abs().max() < 0.01  # next to no positions
    assert torch_default.bias(at(50)).std() > 0.05


# Sandwich


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("nemo_bias_H12_dbar128", 1),
        ("formula_index1_minus_half", 1),
        ("formula_index0_no_shift", 0),
    ],
)
def test_sandwich(golden: Any, name: str, first: Any) -> None:
    arrays = golden("sandwich")
    encoding = Sandwich(TWELVE, first=first)
    if "formula" in name:
        encoding = encoding.double()
    arrays.check(name, pair_bias(encoding, at(40))[0])


def test_sandwich_s_first_index_matters() -> None:
    """Unlike the constant, it changes the differences between keys."""
    one, zero = (pair_bias(Sandwich(TWELVE, first=n).double(), at(40))[0] for n in (1, 0))
    relative = [(b - b[:, :1, :1])[:, -1] for b in (one, zero)]
    gap = (relative[0] - relative[1]).abs().max()
    assert 2.9 < gap <= 12 / 4


def test_sandwich_takes_any_width_and_distance() -> None:
    bias = pair_bias(Sandwich(TWELVE, dim=None), Positions(ids(1, FAR), ids(1)))
    waves = sum(math.cos(FAR * 10_000 ** (-2 * m / 8)) for m in range(1, 5)) - 4
    expected = torch.tensor([waves * 12 / (8 * h) for h in range(1, 13)])
    torch.testing.assert_close(bias.flatten(), expected, rtol=1e-6, atol=0)
    assert torch.equal(bias, pair_bias(Sandwich(TWELVE, dim=8), Positions(ids(1, FAR), ids(1))))


# DAPE


@pytest.mark.parametrize("base", ["alibi", "kerple", "fire"])
def test_dape(golden: Any, base: Any) -> None:
    arrays, encoding = golden("dape"), DAPE(FOUR, base=base, hidden=6)
    names = {"mlp2": "mlp", "bias_p": "base.p", "bias_a": "base.a", "mlp": "base.mlp"}
    names |= {"c": "base.c", "L_multiplier": "base.multiplier"}
    weights = {}
    for key in arrays.arrays:
        prefix, _, rest = key.partition(".")
        if prefix == base and rest not in ("slopes", "init_L"):
            module, dot, parameter = rest.partition(".")
            weights[names[module] + dot + parameter] = arrays[key]
    load(encoding, weights)
    if isinstance(encoding.base, FIRE):  # an untrained parameter in that code
        encoding.base.threshold = float(arrays["fire.init_L"])
    if isinstance(encoding.base, ALiBi):
        decay = encoding.base.separable_bias(at(2))[0]
        arrays.check("alibi.slopes", (decay[:, 0] - decay[:, 1]).float())
    arrays.check(f"out_{base}", rewritten(encoding, arrays["x"]).detach(), where=causal(12))


BASES: dict[str, Callable[[ModelConfig], Encoding]] = {
    "alibi": ALiBi,
    "kerple": Kerple,
    "fire": partial(FIRE, activation="leaky-relu"),
}


@pytest.mark.parametrize("base", BASES)
@torch.no_grad()
def test_dape_without_its_mlp_is_its_base(base: Any) -> None:
    encoding = DAPE(FOUR, base=base)
    alone = BASES[base](FOUR)
    load(alone, {n.removeprefix("base."): p for n, p in named(encoding) if n[:4] == "base"})
    encoding.mlp.requires_grad_(False)
    for parameter in encoding.mlp.parameters():
        parameter.zero_()
    expected = bias_of(alone, 9)
    torch.testing.assert_close(bias_of(encoding, 9).tril(), expected.tril().to(torch.float32))
    assert encoding.shift_invariant == alone.shift_invariant == (base != "fire")


@torch.no_grad()
def test_dape_mixes_heads_and_not_pairs() -> None:
    encoding, scores = DAPE(FOUR), torch.randn(2, 4, 6, 6)
    changed = scores.clone()
    changed[1, 2, 4, 3] += 1
    difference = (rewritten(encoding, changed) - rewritten(encoding, scores)).abs() > 1e-6
    expected = torch.zeros_like(difference)
    expected[1, :, 4, 3] = True
    assert torch.equal(difference, expected)


# Learned


@torch.no_grad()
def test_learned() -> None:
    encoding, x = Learned(FOUR), torch.randn(2, 5, 64)
    positions = torch.tensor([[0, 1, 2, 3, 2047], [7, 7, 8, 9, 300]])
    assert torch.equal(
        encoding.embed(x, Positions(positions, positions)), x + encoding.table[positions]
    )
    assert encoding.max_position == Learned.max_position == 2048
    assert encoding.table.std() == pytest.approx(0.02, rel=0.02)


@torch.no_grad()
def test_learned_past_its_table() -> None:
    tokens = torch.randint(260, (1, 2))
    config = ModelConfig(layers=1, train_length=10)
    refusing = Decoder(config, partial(Learned, rows=10))
    refusing(tokens, positions=torch.tensor([[8, 9]]))
    with pytest.raises(InputError, match="positions 0 to 9, not 10"):
        refusing(tokens, positions=torch.tensor([[9, 10]]))
    clamping = Decoder(config, partial(Learned, rows=10, past="clamp"))
    last, far = (clamping(tokens, positions=torch.tensor([[8, p]])) for p in (9, FAR))
    assert torch.equal(last, far)
    assert not torch.equal(last, clamping(tokens, positions=torch.tensor([[8, 8]])))


def test_learned_rows_that_training_does_not_reach() -> None:
    model = Decoder(ModelConfig(layers=1, train_length=20), Learned).train()
    model(torch.randint(260, (2, 20))).sum().backward()
    grad = model.get_parameter("encodings.0.table").grad
    assert grad is not None
    assert bool(grad[:20].any(dim=1).all()) and not grad[20:].any()


# All of them

SPECS = ["alibi", "t5", "kerple", "fire", "sandwich", "dape", "learned"]


@pytest.mark.parametrize(
    ("spec", "instances"),
    [
        ("t5", 1),
        ("t5:shared=false", 3),
        ("kerple", 1),
        ("kerple:shared=false", 3),
        ("fire", 3),
        ("fire:shared=true", 1),
        ("dape", 3),
        ("learned", 1),
    ],
)
def test_sharing(spec: str, instances: int) -> None:
    plugin = plugins.load("encoding", spec)
    model = Decoder(ModelConfig(layers=3), lambda c, layer: plugin.cls(c, layer, **plugin.options))
    drawn = {float(list(e.parameters())[-1].detach().sum()) for e in model.encodings}
    assert len(model.encodings) == len(drawn) == instances


@pytest.mark.parametrize("spec", ["t5", "fire", "kerple", "kerple:form=power", "sandwich"])
@torch.no_grad()
def test_bias_of_a_batch_with_positions_of_its_own(spec: str) -> None:
    """Each row has the bias that it has alone, contiguous along the keys for fused attention."""
    plugin = plugins.load("encoding", spec)
    encoding = plugin.cls(FOUR, **plugin.options)
    queries, keys = torch.tensor([[5, 9], [700, 701]]), torch.tensor([[0, 5, 9], [3, 700, 701]])
    together = encoding.bias(Positions(queries, keys))
    assert together.shape == (2, 4, 2, 3) and together.dtype == torch.float32
    assert together.stride(-1) == 1
    for i in range(2):
        alone = encoding.bias(Positions(queries[i : i + 1], keys[i : i + 1]))
        torch.testing.assert_close(together[i : i + 1], alone)


@pytest.mark.parametrize(
    "spec",
    ["alibi", "t5", "kerple", "kerple:form=power-weighted", "sandwich", "dape", "dape:base=alibi"],
)
@torch.no_grad()
def test_far_positions_keep_their_distances(spec: str) -> None:
    plugin = plugins.load("encoding", spec)
    encoding = plugin.cls(FOUR, **plugin.options)
    assert encoding.shift_invariant
    near, far = (bias_of(encoding, 30, first).tril() for first in (0, FAR))
    assert torch.equal(near, far)
    assert near.tril(-1).std() > 0.001
