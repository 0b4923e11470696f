"""Rotary encodings, compared with numbers of public implementations."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from pe_bench.config import ModelConfig
from pe_bench.decoder.cache import Cache
from pe_bench.decoder.logits import attention_logits
from pe_bench.decoder.model import Decoder
from pe_bench.encodings.rope import RoPE, geometric, rotate
from pe_bench.encodings.selective_rope import SelectiveRoPE
from pe_bench.encodings.tape import TAPE
from pe_bench.encodings.xpos import XPos
from pe_bench.errors import InputError
from pe_bench.positions import Positions
from pe_bench.registry import plugins

CPU = torch.device("cpu")
SHORT = {"original_length": 32}
TABLES: dict[str, dict[str, Any]] = {
    "rope": {},
    "rope_theta1e6": {"base": 1e6},
    "pi_s4": {"scaling": "pi", "factor": 4.0},
    "pi_s4_yarnrepo": {"scaling": "pi", "factor": 4.0},
    "ntk_alpha4": {"scaling": "ntk", "factor": 4.0},
    "dynntk_f1_L32_S128": {"scaling": "dynamic-ntk", **SHORT},
    "dynntk_f4_L32_S128": {"scaling": "dynamic-ntk", "factor": 4.0, **SHORT},
    "dynntk_yarnrepo_ntk2_L32_S128": {"scaling": "dynamic-ntk", "factor": 2.0, **SHORT},
    "dynlinear_L32_S128": {"scaling": "dynamic-pi", **SHORT},
    "yarn_s4_L32": {"scaling": "yarn", "factor": 4.0, **SHORT},
    "dynyarn_L32_S128": {"scaling": "dynamic-yarn", **SHORT},
}
YARN8 = {"scaling": "yarn", "factor": 8.0, "original_length": 1024}
HF5: dict[str, tuple[int, int, dict[str, Any]]] = {  # head_dim, length, options
    "linear_f4": (64, 1, {"scaling": "pi", "factor": 4.0}),
    "dynamic_f2_S4096": (
        64,
        4096,
        {"scaling": "dynamic-ntk", "factor": 2.0, "original_length": 1024},
    ),
    "yarn_f8_L1024": (64, 1, YARN8),
    "yarn_f8_L1024_notrunc": (64, 1, {**YARN8, "truncate": False}),
    "llama3_f8_L8192": (128, 1, {"base": 5e5, "scaling": "llama3", "original_length": 8192}),
    "proportional_p025": (64, 1, {"proportional": 0.25}),
    "proportional_p075": (64, 1, {"proportional": 0.75}),
}


def at(ids: Tensor) -> Positions:
    return Positions(ids, ids)


def selective(encoding: SelectiveRoPE, x: Tensor) -> Positions:
    """Return positions with the features of the tokens x."""
    plain = at(torch.arange(x.shape[1])[None])
    features = encoding.scan_features(encoding.token_features(x, plain))
    return replace(plain, features=features)


def rope(head_dim: int = 16, **options: Any) -> RoPE:
    train_length = options.get("original_length", 256)
    return RoPE(ModelConfig(width=2 * head_dim, heads=2, train_length=train_length), **options)


def check_frequencies(arrays: Any, key: str, ours: Tensor) -> None:
    arrays.check(key, ours)
    # The largest one is always 1 and says nothing about the slow planes.
    torch.testing.assert_close(ours, arrays[key], rtol=2e-6, atol=0)


def check_gain(arrays: Any, key: str, encoding: RoPE, length: int) -> None:
    cos, sin = encoding.tables(torch.zeros(1, length).long(), torch.float64)
    assert (cos == cos[0, 0, 0, 0]).all() and not sin.any()
    arrays.check(key, cos[0, 0, 0, 0])


def doubled(half: Tensor) -> Tensor:
    """Return the doubled layout of the reference implementations."""
    return torch.cat([half, half], dim=-1)


def halves(x: Tensor) -> Tensor:
    """Convert the interleaved layout to the layout here: even channels first, then odd ones."""
    return torch.cat([x[..., ::2], x[..., 1::2]], dim=-1)


@pytest.mark.parametrize("tag", TABLES)
def test_rope_tables_and_rotation(golden: Any, tag: str) -> None:
    arrays, encoding = golden("rope"), rope(**TABLES[tag])
    frequencies = encoding.frequencies(CPU, 128)
    scaling = TABLES[tag].get("scaling", "none")
    if scaling in ("pi", "dynamic-pi"):  # the reference divides positions instead
        frequencies = 4 * frequencies
    check_frequencies(arrays, f"{tag}.inv_freq", frequencies)
    if scaling == "none":
        assert torch.equal(frequencies, arrays[f"{tag}.inv_freq"])
    tables = encoding.tables(torch.arange(128)[None], torch.float32)
    for name, table in zip(("cos", "sin"), tables, strict=True):
        arrays.check(f"{tag}.{name}", doubled(table[0, 0]))
    ids = arrays["position_ids"]
    cos, sin = (table[0, 0][ids][:, None] for table in tables)
    if not encoding.scaling.dynamic:
        assert all(map(torch.equal, (cos, sin), encoding.tables(ids, torch.float32)))
        rotated = encoding.transform_qk(arrays["q"], arrays["k"], at(ids))
        assert torch.equal(rotated[0], rotate(arrays["q"], cos, sin))
    for name in "qk":
        arrays.check(f"{tag}.{name}_rot", rotate(arrays[name], cos, sin))
    if scaling in ("yarn", "dynamic-yarn"):
        check_gain(arrays, f"{tag}.mscale", encoding, 128)


def test_longrope_of_its_authors(golden: Any) -> None:
    arrays = golden("rope")
    factors = ";".join(str(float(f)) for f in arrays["longrope.rescale_factors"])
    encoding = rope(scaling="longrope", factor=4.0, factors=factors, **SHORT)
    check_frequencies(arrays, "longrope.inv_freq", encoding.frequencies(CPU))
    check_gain(arrays, "longrope.mscale", encoding, 24)
    cos, sin = encoding.tables(arrays["position_ids"], torch.float32)
    arrays.check("longrope.cos_at_pos", doubled(cos[:, 0]))
    arrays.check("longrope.sin_at_pos", doubled(sin[:, 0]))


def test_frequencies_of_large_heads(golden: Any) -> None:
    arrays = golden("rope")
    assert torch.equal(rope(128).frequencies(CPU), arrays["big.rope.inv_freq"])
    arrays.check("big.rope.inv_freq", rope(128).frequencies(CPU), tolerance=0)
    ntk = rope(128, scaling="ntk", factor=8.0)
    check_frequencies(arrays, "big.ntk_alpha8.inv_freq", ntk.frequencies(CPU))
    for tag, dim, factor, length in (
        ("big.yarn_s16_L4096", 128, 16.0, 4096),
        ("big.yarn_s8_L1024_d64", 64, 8.0, 1024),
    ):
        yarn = rope(dim, scaling="yarn", factor=factor, original_length=length)
        check_frequencies(arrays, f"{tag}.inv_freq", yarn.frequencies(CPU))
        check_gain(arrays, f"{tag}.mscale", yarn, 1)


@pytest.mark.parametrize("tag", HF5)
def test_current_hugging_face_scalings(golden: Any, tag: str) -> None:
    arrays, (dim, length, options) = golden("rope_hf5"), HF5[tag]
    encoding = rope(dim, **options)
    check_frequencies(arrays, f"{tag}.inv_freq", encoding.frequencies(CPU, length))
    check_gain(arrays, f"{tag}.attention_factor", encoding, length)


@pytest.mark.parametrize("length", [512, 8192])
def test_current_hugging_face_longrope(golden: Any, length: int) -> None:
    arrays = golden("rope_hf5")
    encoding = rope(
        64,
        scaling="longrope",
        factor=8.0,
        original_length=1024,
        factors=";".join(map(str, arrays["longrope.long_factor"].tolist())),
        short_factors=";".join(["1"] * 32),
    )
    check_frequencies(arrays, f"longrope_S{length}.inv_freq", encoding.frequencies(CPU, length))
    check_gain(arrays, f"longrope_S{length}.attention_factor", encoding, length)


def test_interleaved_rope_is_ours_in_another_order(golden: Any) -> None:
    arrays = golden("rope_interleaved")
    q, expected = (halves(arrays[key].transpose(1, 2)) for key in ("q_bshd", "q_rot_bshd"))
    encoding = rope()
    positions = at(torch.arange(12)[None])
    cos, sin = encoding.tables(positions.query, torch.float32)
    arrays.check("cos", cos[0, 0])
    arrays.check("sin", sin[0, 0])
    rotated, _ = encoding.transform_qk(q, q, positions)
    interleaved = torch.stack(rotated.chunk(2, dim=-1), dim=-1).flatten(-2)
    arrays.check("q_rot_bshd", interleaved.transpose(1, 2))
    assert torch.equal(halves(interleaved), rotated) and (rotated - expected).abs().max() < 1e-5


def xpos(train_length: int = 20, **options: Any) -> XPos:
    """Return xPos, centred at half of the training length."""
    return XPos(ModelConfig(width=48, heads=3, train_length=train_length), **options)


@pytest.mark.parametrize(
    ("prefix", "scale_base", "train_length"),
    # torchscale's centre is the middle of the 20 tokens, and TAPE's code has that of a table of 64.
    [("ts", 512, 20), ("ts", 8, 20), ("tape", 2048, 64), ("tape", 512, 64)],
)
def test_xpos(golden: Any, prefix: str, scale_base: int, train_length: int) -> None:
    arrays, encoding = golden("xpos"), xpos(train_length, scale_base=scale_base)
    ordered = halves if prefix == "ts" else torch.Tensor.clone
    positions = at(torch.arange(20)[None])
    q, k = encoding.transform_qk(ordered(arrays["q"])[None], ordered(arrays["k"])[None], positions)
    for name, x in (("q", q), ("k", k)):
        if prefix == "ts":
            x = torch.stack(x.chunk(2, dim=-1), dim=-1).flatten(-2)
        arrays.check(f"{prefix}_{name}_{scale_base}", x[0])
        if (name, prefix, scale_base) == ("q", "ts", 8):
            arrays.check("ts_decode_q_8_offset", x[0, :, -1:])
    logits = f"{prefix}_logits_{scale_base}"
    if logits != "tape_logits_512":
        arrays.check(logits, (q @ k.mT)[0])
        # Later keys have the largest products, but they are masked.
        arrays.check(logits, (q @ k.mT)[0], where=torch.ones(20, 20).tril().bool())


def test_tables_of_xpos(golden: Any) -> None:
    arrays, encoding = golden("xpos"), xpos(64, scale_base=2048.0)
    positions = torch.arange(64)[None]
    scale = encoding.tables(positions, torch.float32)[2][0, 0]
    arrays.check("tape_scale", doubled(scale))
    arrays.check("tape_freqs", doubled(positions[0][:, None] * encoding.frequencies(CPU)))
    one_scale_base_on = torch.tensor([[32 + 2048]])
    arrays.check("zeta", encoding.tables(one_scale_base_on, torch.float32)[2][0, 0, 0])


@torch.no_grad()
def test_selective_rope(golden: Any) -> None:
    arrays = golden("selective_rope")
    model = ModelConfig(width=24, heads=3)
    encoding = SelectiveRoPE(model, base=10_000.0, rank=4, bias=True, gate=True)
    encoding.load_state_dict(
        {
            "down.weight": arrays["w.phi_proj.0.weight"],
            "up.weight": arrays["w.phi_proj.1.weight"],
            "conv.weight": arrays["w.phi_conv1d.weight"],
            "log_bias": arrays["w.phi_bias"].view(3, 1, 4),
            "gate.weight": arrays["w.phase_gate_proj.weight"],
            "gate.bias": arrays["w.phase_gate_proj.bias"],
        }
    )
    arrays.check("w.temperature", geometric(1e4, 4).view(1, 1, 1, 4))
    q, k = (arrays[name].transpose(1, 2) for name in "qk")
    positions = selective(encoding, arrays["x"])
    for name, x in zip("qk", encoding.transform_qk(q, k, positions), strict=True):
        arrays.check(f"{name}_rot", x.transpose(1, 2))


# Cases that the golden numbers do not cover.


def logits(encoding: RoPE, positions: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return q k^T / sqrt(D) of fixed random q and k, -inf for later keys."""
    model, generator = encoding.model, torch.Generator().manual_seed(4)
    shape = (1, model.heads, positions.shape[1], model.head_dim)
    q, k = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in "qk")
    return attention_logits(*encoding.transform_qk(q, k, at(positions)))


@pytest.mark.parametrize("position", [7, 100_000])
def test_angles_are_exact_at_far_positions(position: int) -> None:
    encoding = rope()
    cos, sin = encoding.tables(torch.tensor([[position]]), torch.float64)
    for m, theta in enumerate(encoding.frequencies(CPU).tolist()):
        assert float(cos[0, 0, 0, m]) == pytest.approx(math.cos(position * theta), abs=1e-9)
        assert float(sin[0, 0, 0, m]) == pytest.approx(math.sin(position * theta), abs=1e-9)


@pytest.mark.parametrize(
    "options",
    [
        {"scaling": "dynamic-pi"},
        {"scaling": "dynamic-ntk"},
        {"scaling": "dynamic-ntk", "factor": 3.0},
        {"scaling": "dynamic-yarn"},
        {"scaling": "dynamic-yarn", "attention_factor": 1.5},
    ],
)
def test_dynamic_scalings_are_plain_up_to_the_original_length(options: Any) -> None:
    encoding, plain = rope(**options, **SHORT), rope()
    assert not encoding.prefix_consistent and encoding.shift_invariant
    for length, same in ((1, True), (32, True), (33, False)):
        tables = [
            e.tables(5 + torch.arange(length)[None], torch.float32) for e in (encoding, plain)
        ]
        assert torch.equal(tables[0][0], tables[1][0]) == same


@pytest.mark.parametrize("scaling", ["pi", "ntk", "yarn", "llama3"])
def test_fixed_scalings_do_not_depend_on_the_length(scaling: Any) -> None:
    encoding = rope(scaling=scaling, factor=4.0)
    assert encoding.prefix_consistent and encoding.shift_invariant
    short, long = (encoding.tables(torch.arange(n)[None], torch.float32)[0] for n in (10, 2000))
    assert torch.equal(short, long[:, :, :10])
    assert not torch.equal(encoding.frequencies(CPU), rope().frequencies(CPU))


def test_the_original_length_is_the_training_length() -> None:
    model = ModelConfig(width=128, heads=2, train_length=512)
    default = RoPE(model, scaling="yarn", factor=8.0).frequencies(CPU)
    given, other = (
        rope(64, scaling="yarn", factor=8.0, original_length=n).frequencies(CPU) for n in (512, 256)
    )
    assert torch.equal(default, given) and not torch.equal(default, other)


@pytest.mark.parametrize(
    ("length", "kept"),
    [
        (5, [1, 0, 0, 0, 0, 0, 0, 0]),  # no plane completes a turn: only plane 0 is above the ramp
        (65_536, [1, 1, 1, 1, 1, 1, 0.75, 0.5]),  # from 5 to 9, past the last of the 8 planes
    ],
)
def test_ends_of_yarn_by_index(length: int, kept: list[float]) -> None:
    encoding = rope(scaling="yarn", factor=4.0, original_length=length)
    ratios = encoding.frequencies(CPU) / rope().frequencies(CPU)
    torch.testing.assert_close(ratios, 0.25 + 0.75 * torch.tensor(kept))


def test_yarn_by_rotations() -> None:
    length, factor = 1024, 4.0
    options: Any = {"scaling": "yarn", "factor": factor, "original_length": length}
    plain = rope(64).frequencies(CPU).tolist()
    by_rotations = rope(64, ramp="rotations", **options).frequencies(CPU).tolist()
    by_index = rope(64, **options).frequencies(CPU).tolist()
    seen = set()
    for theta, scaled in zip(plain, by_rotations, strict=True):
        turns = length * theta / (2 * math.pi)
        kept = 1 if turns > 32 else 0 if turns < 1 else (turns - 1) / 31
        seen.add(kept if kept in (0, 1) else "between")
        assert scaled == pytest.approx(kept * theta + (1 - kept) * theta / factor, rel=1e-6)
    assert seen == {0, 1, "between"}
    # The two forms agree only at their ends.
    assert max(b / a for a, b in zip(by_rotations, by_index, strict=True)) > 1.3


def test_the_attention_factor_enters_the_logits_squared() -> None:
    options: Any = {"scaling": "yarn", "factor": 4.0}
    positions = torch.arange(20)[None]
    one = logits(rope(**options, attention_factor=1.0), positions).tril()
    given = logits(rope(**options, attention_factor=1.5), positions).tril()
    default = logits(rope(**options), positions).tril()
    torch.testing.assert_close(given, 2.25 * one)
    torch.testing.assert_close(default, (1 + 0.1 * math.log(4)) ** 2 * one)


def test_longrope_changes_its_factors_at_the_original_length() -> None:
    options: Any = {
        "scaling": "longrope",
        "factor": 2.0,
        "original_length": 16,
        "factors": "4;" * 7 + "4",
    }
    assert rope(**options).prefix_consistent
    encoding = rope(**options, short_factors="2;" * 7 + "2")
    assert not encoding.prefix_consistent
    plain = rope().frequencies(CPU)
    for length, divisor in ((16, 2), (17, 4)):
        torch.testing.assert_close(encoding.frequencies(CPU, length), plain / divisor)


def test_partial_rotary_is_that_of_neox_in_another_order() -> None:
    """GPT-NeoX rotates the first channels of a head as a smaller head, and not the others."""
    q, positions = torch.randn(1, 2, 30, 16, dtype=torch.float64), torch.arange(30)[None]
    encoding, small = rope(rotary=0.5), rope(8)
    assert torch.equal(encoding.frequencies(CPU), small.frequencies(CPU))
    turning, still = q.chunk(2, dim=-1)
    turned, _ = small.transform_qk(turning, turning, at(positions))
    (a, b), (c, d) = turning.chunk(2, -1), still.chunk(2, -1)
    ours, _ = encoding.transform_qk(torch.cat([a, c, b, d], -1), q, at(positions))
    (a, b), (c, d) = turned.chunk(2, -1), still.chunk(2, -1)
    assert torch.equal(ours, torch.cat([a, c, b, d], -1))


def test_yarn_with_partial_rotary_scales_only_what_turns() -> None:
    encoding = rope(rotary=0.5, scaling="yarn", factor=4.0)
    cos, _ = encoding.tables(torch.zeros(1, 1).long(), torch.float32)
    assert (cos[..., :4] > 1.1).all() and (cos[..., 4:] == 1).all()


@pytest.mark.parametrize("cls", [RoPE, XPos])
def test_trainable_frequencies(cls: Any) -> None:
    model = ModelConfig(width=32, heads=2, layers=2)
    encoding, plain = cls(model, trainable=True).bfloat16(), cls(model)
    assert [(n, p.dtype) for n, p in encoding.named_parameters()] == [("theta", torch.float32)]
    positions = torch.arange(20)[None]
    state = encoding.tables(positions, torch.float32)
    assert all(map(torch.equal, state, plain.tables(positions, torch.float32)))
    state[0].sum().backward()
    assert encoding.theta.grad.all()
    with torch.no_grad():
        encoding.theta.mul_(0.5)
    assert torch.equal(encoding.frequencies(CPU), plain.frequencies(CPU) / 2)


def test_only_the_first_layer_learns_frequencies() -> None:
    config = ModelConfig(width=32, heads=2, layers=3)
    options: Any = {"trainable": True, "scaling": "yarn", "factor": 4.0, "ramp": "rotations"}
    for cls in (RoPE, TAPE):
        model = Decoder(config, partial(cls, **options))
        names = [name for name, _ in model.encodings.named_parameters() if name.endswith("theta")]
        assert names == ["0.theta"]


def test_rotating_a_state_of_tape() -> None:
    tape, angles = TAPE(ModelConfig(width=32, heads=2)), torch.linspace(0.5, 3, 8).double()
    state = tape.prepare(torch.empty(0).double(), at(torch.arange(20)[None]))
    before, after = (
        torch.complex(*z.chunk(2, dim=-1)) for z in (state, tape.rotate_state(state, angles))
    )
    phase = torch.polar(torch.ones(8).double(), angles).expand_as(before)
    torch.testing.assert_close(after / before, phase)


@pytest.mark.parametrize(("scale_base", "share"), [(512.0, 0.0816), (2048.0, 0.5345)])
def test_xpos_fades(scale_base: float, share: float) -> None:
    encoding = xpos(256, scale_base=scale_base)
    for first in (0, 20_000):
        ids = torch.tensor([[first, first + 1024]])
        scale = encoding.tables(ids, torch.float64)[2][0, 0]
        fades = scale[1] / scale[0]
        assert float(fades[0]) == pytest.approx(share, abs=1e-4)
        zeta = torch.arange(0, 16, 2).double() / 22.4 + 0.4 / 1.4
        torch.testing.assert_close(fades, zeta ** (1024 / scale_base))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale_base", [8.0, 512.0, 2048.0])
def test_xpos_neither_overflows_nor_loses_precision(scale_base: float, dtype: Any) -> None:
    encoding = xpos(256, scale_base=scale_base)
    assert encoding.max_position == int(55.3295 * scale_base)
    ids = torch.linspace(0, encoding.max_position - 1, 60).long()[None]
    exact, ours = (logits(encoding, ids, d)[0] for d in (torch.float64, torch.float32))
    causal = torch.ones(60, 60).tril().bool().expand_as(exact)
    torch.testing.assert_close(ours[causal].double(), exact[causal], rtol=1e-5, atol=1e-5)
    # Products with later keys are the largest, and must be finite before they are masked.
    large = torch.full((1, 3, 60, 16), 30.0)
    q, k = encoding.transform_qk(large, large, at(ids))
    assert (q.to(dtype) @ k.to(dtype).mT).isfinite().all()


def test_xpos_says_where_it_ends() -> None:
    model = Decoder(ModelConfig(width=32, heads=2, layers=1), partial(XPos, scale_base=8.0))
    tokens = torch.zeros(1, 2).long()
    with pytest.raises(InputError, match="positions 0 to 441, not 442"):
        model(tokens, positions=torch.tensor([[0, 442]]))


def test_selective_rope_without_selection_is_rope() -> None:
    model = ModelConfig(width=32, heads=2)
    encoding = SelectiveRoPE(model, bias=True)  # e^0 = 1
    torch.nn.init.zeros_(encoding.up.weight)
    q, k, x = torch.randn(2, 2, 20, 16), torch.randn(2, 2, 20, 16), torch.randn(2, 20, 32)
    plain = RoPE(model, base=500_000.0)
    expected = plain.transform_qk(q, k, at(1 + torch.arange(20)[None]))
    actual = encoding.transform_qk(q, k, selective(encoding, x))
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@torch.no_grad()
def test_long_sums_of_selective_rope_are_exact() -> None:
    encoding = SelectiveRoPE(ModelConfig(width=4, heads=1), bias=True)
    torch.nn.init.zeros_(encoding.up.weight)
    assert encoding.log_bias is not None
    torch.nn.init.constant_(encoding.log_bias, -2.3)
    angles = encoding.scan_features(torch.zeros(1, 1, 100_000, 2))
    step = float(torch.tensor(-2.3).exp())
    assert float(angles[0, 0, -1, 0]) == pytest.approx(100_000 * step, abs=1e-6)


def test_options_of_selective_rope() -> None:
    model = ModelConfig(width=64, heads=4)
    counts = {"": 26 * 64, "rank=4": 4 * 64 + 4 * 32 + 4 * 32, "bias=true": 27 * 64 - 32}
    counts["gate=true"] = 26 * 64 + 4 * 64 + 4
    for options, count in counts.items():
        plugin = plugins.load("encoding", f"selective-rope:{options}".rstrip(":"))
        encoding = plugin.make(model, 0)
        assert sum(p.numel() for p in encoding.parameters()) == count
    assert SelectiveRoPE(model).base == 500_000


@torch.no_grad()
def test_selective_rope_starts_with_noticeable_angles() -> None:
    torch.manual_seed(2)
    model = ModelConfig(width=256, heads=4)
    x = torch.randn(4, 400, 256)
    sizes = {}
    for init in ("torch", "normal"):
        encoding = SelectiveRoPE(model, gate=True, init=init)
        features = selective(encoding, x).features
        assert features is not None and encoding.gate is not None
        phi = features[..., 0].diff(dim=-1)
        sizes[init] = float(phi.square().mean().sqrt())
        assert (init == "torch") == bool(encoding.gate.bias.any())
    assert 0.005 < sizes["torch"] < 0.05 and 1e-5 < sizes["normal"] < 1e-3


@torch.no_grad()
@pytest.mark.parametrize("spec", ["rope:scaling=yarn,factor=4", "xpos", "selective-rope:gate=true"])
def test_decoding_far_beyond_training(spec: str) -> None:
    torch.manual_seed(1)
    config = ModelConfig(width=32, heads=2, layers=2, train_length=16, init_std=0.3)
    model = Decoder(config, plugins.load("encoding", spec).make).eval()
    tokens = torch.randint(260, (1, 120))
    cache = Cache(1, 120)
    steps = torch.cat([model(part, cache) for part in tokens.split([100, 19, 1], dim=1)], dim=1)
    torch.testing.assert_close(steps, model(tokens), rtol=1e-4, atol=1e-4)
