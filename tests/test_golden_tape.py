"""TAPE, compared with numbers of the published code; every option, compared with its formula."""

import math
import re
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pe_bench.config import ModelConfig
from pe_bench.decoder.cache import Cache
from pe_bench.decoder.model import Decoder, MakeEncoding
from pe_bench.encodings.rope import RoPE
from pe_bench.encodings.tape import TAPE
from pe_bench.encodings.tape_ablations import TAPEAblations
from pe_bench.positions import Positions, State

FILES = ["tape_1layer_f64", "tape_1layer_f32", "tape_3layer_f64", "tape_3layer_f32"]
WEIGHTS = {
    "post_attention_linear.weight": "sigma",
    "pe.up_proj.weight": "up",
    "pe.x_proj.weight": "gate.weight",
    "pe.down_proj.weight": "down",
}


class Recording(TAPE):
    """An encoding that records the arguments and results of its hooks."""

    def __init__(self, model: ModelConfig, layer: int = 0) -> None:
        super().__init__(model, layer)
        self.seen: dict[str, Tensor] = {}

    def transform_qk(self, q: Tensor, k: Tensor, positions: Positions) -> tuple[Tensor, Tensor]:
        rotated = super().transform_qk(q, k, positions)
        self.seen |= {"q": q, "k": k, "q_rot": rotated[0], "k_rot": rotated[1]}
        return rotated

    def extra_values(self, state: State) -> Tensor | None:
        values = super().extra_values(state)
        if values is None:
            return None
        # Attention averages additional one-hot values, which gives the attention weights.
        one_hot = torch.eye(values.shape[2], dtype=values.dtype)
        return torch.cat([values, one_hot.expand(*values.shape[:2], -1, -1)], dim=-1)

    def rewrite_logits(self, scores: Tensor, *rest: Any) -> Tensor:
        self.seen["logits_masked"] = scores
        return super().rewrite_logits(scores, *rest)

    def update_state(self, state: State, extra: Tensor | None, *rest: Tensor) -> State:
        if extra is not None:
            width = state.shape[-1]
            self.seen["probs"], extra = extra[..., width:], extra[..., :width]
        return super().update_state(state, extra, *rest)

    def gather(self, state: Tensor, attended: Tensor) -> Tensor:
        self.seen |= {"in": state, "attn": attended}
        return super().gather(state, attended)

    def mix(self, state: Tensor, m: Tensor) -> Tensor:
        mixed = super().mix(state, m)
        self.seen |= {"mid": state, "mlp_out": m, "pe": mixed - state, "out": mixed}
        return mixed


def golden_layers(arrays: Any) -> int:
    return sum(key.endswith(".hidden_in") for key in arrays.arrays)


def golden_decoder(arrays: Any, layers: int, encoding: MakeEncoding = TAPE) -> Decoder:
    """Return a decoder with the golden weights in all layers that both have."""
    config = ModelConfig(
        layers=layers,
        heads=int(arrays["num_heads"]),
        width=int(arrays["num_heads"] * arrays["head_dim"]),
        mlp_width=128,
        norm_eps=float(arrays["rms_eps"]),
        vocab_size=97,
    )
    weights = {}
    for key in arrays.arrays:
        if key.startswith("w.") and "rotary_emb" not in key:
            name = key.removeprefix("w.").removeprefix("model.")
            for theirs, ours in WEIGHTS.items():
                name = re.sub(rf"^layers\.(\d+)\.{theirs}$", rf"encodings.\1.{ours}", name)
            weights[name] = arrays[key]
    model = Decoder(config, encoding).to(arrays["lm_logits"].dtype)
    missing, unread = model.load_state_dict(weights, strict=False)
    last = golden_layers(arrays) - 1
    assert all(name.startswith(f"layers.{last + 1}.") for name in missing)
    assert all(name.startswith(f"encodings.{last}.") for name in unread)
    assert bool(missing) == (layers > last + 1) and bool(unread) == (layers == last + 1)
    return model.eval()


@pytest.mark.parametrize("backend", ["eager", "sdpa", "cache"])
@pytest.mark.parametrize("name", FILES)
@torch.no_grad()
def test_logits(golden: Any, name: str, backend: Any) -> None:
    arrays = golden(name)
    model, tokens = golden_decoder(arrays, golden_layers(arrays)), arrays["input_ids"]
    assert model.config.heads * 4 == int(arrays["position_size"])  # the default
    if backend == "cache":
        cache = Cache(*tokens.shape)
        logits = torch.cat([model(token, cache) for token in tokens.split(1, dim=1)], dim=1)
    else:
        logits = model(tokens, backend=backend)
    arrays.check("lm_logits", logits)


@pytest.mark.parametrize("name", FILES)
@torch.no_grad()
def test_intermediate_values(golden: Any, name: str) -> None:
    arrays = golden(name)
    layers = golden_layers(arrays)
    # The last layer has an update in the published code but none here, so add a layer.
    model = golden_decoder(arrays, layers + 1, Recording)
    seen: list[dict[str, Tensor]] = []
    for encoding, block in zip(model.encodings, model.layers, strict=True):
        assert isinstance(encoding, Recording)
        seen.append(encoding.seen)
        block.register_forward_hook(
            lambda _, args, out, to=seen[-1]: to.update(
                hidden_in=args[0], hidden_out=out[0], block_in=args[2], block_out=out[1]
            )
        )
        block.get_submodule("self_attn").register_forward_hook(
            lambda _, args, out, to=seen[-1]: to.update(attn_out=out[0])
        )
        block.get_submodule("mlp").register_forward_hook(
            lambda _, args, out, to=seen[-1]: to.update(mlp=out)
        )
    model(arrays["input_ids"])
    for i, values in enumerate(seen[:layers]):
        # The hooks get the tensors that the blocks pass on.
        assert values.pop("block_in") is values["in"]
        assert values.pop("block_out") is values["out"]
        assert values.pop("mlp") is values["mlp_out"]
        for state in ("in", "attn", "mid", "pe", "out"):
            halves = values.pop(state).expand(2, -1, -1, -1).chunk(2, dim=-1)
            for part, half in zip(("cos", "sin"), halves, strict=True):
                values[f"{part}_{state}"] = torch.cat([half, half], dim=-1)
        assert {f"l{i}.{key}" for key in values} == {
            key for key in arrays.arrays if key.startswith(f"l{i}.")
        }
        for key, value in values.items():
            where = torch.ones(12, 12).tril() > 0 if key == "logits_masked" else None
            arrays.check(f"l{i}.{key}", value, where=where)


@pytest.mark.parametrize("name", FILES)
def test_frequencies(golden: Any, name: str) -> None:
    arrays = golden(name)
    expected = arrays["w.model.rotary_emb.inv_freq"]
    config = ModelConfig(heads=4, width=64)
    cos, sin = (
        TAPE(config)
        .prepare(torch.zeros(1).double(), Positions(torch.ones(1, 1), torch.ones(1, 1)))
        .chunk(2, dim=-1)
    )
    # At position 1 the angle is the frequency.
    angles = torch.atan2(sin, cos)[0, 2, 0].to(expected.dtype)
    arrays.check("w.model.rotary_emb.inv_freq", angles)


@pytest.mark.parametrize("shift", [17, 1000, 100_000])
@torch.no_grad()
def test_a_global_shift_of_the_published_model(golden: Any, shift: int) -> None:
    arrays = golden("tape_3layer_f64")
    model, tokens = golden_decoder(arrays, 3), arrays["input_ids"]
    positions = torch.arange(tokens.shape[1])[None]
    # An angle of 10^5 rad has five decimals fewer than one of 1 rad.
    arrays.check("lm_logits", model(tokens, positions=positions + shift), tolerance=1e-9)
    assert (model(tokens, positions=2 * positions) - arrays["lm_logits"]).abs().max() > 1e-3


# There are no golden numbers for the rest, so a second implementation in loops replaces them.

SMALL = ModelConfig(layers=3, heads=3, width=24, mlp_width=20, vocab_size=11, init_std=0.2)


def kind_of(options: dict[str, Any]) -> type[TAPE]:
    """Return `tape` if it has the options, else `tape-ablations`."""
    own = {"position_size", "scaling", "factor", "ramp", "trainable", "original_length"}
    return TAPE if own.issuperset(options) else TAPEAblations


def decoder(noise: float = 0.0, shape: ModelConfig = SMALL, **options: Any) -> Decoder:
    torch.manual_seed(5)
    model = Decoder(shape, partial(kind_of(options), **options)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(noise * torch.randn_like(parameter))
    return model


def tokens_of(model: Decoder, length: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(model.config.vocab_size, (2, length), generator=generator)


def attended_part(
    mixing: str, post_mix: str, weight: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the update with attended states, computed for every pair of heads or channels."""

    def change(w: Tensor, z: Tensor) -> Tensor:
        axis, result = 3 if mixing == "channels" else 1, torch.zeros_like(z)
        for i in range(z.shape[axis]):
            for j in range(z.shape[axis]):
                source = z.select(axis, j if post_mix == "matrix" else i)
                result.select(axis, i).add_(w[i, j] * source)
        return result

    if mixing == "heads-apart":
        return change(weight[0], cos), change(weight[1], sin)
    return change(weight, cos), change(weight, sin)


def mlp_part(
    mixing: str, up: Tensor, down: Tensor, gate: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the update of the MLP, token by token; gate is (B, T, P)."""

    def change(up: Tensor, down: Tensor, z: Tensor) -> Tensor:
        result = torch.zeros_like(z)
        for b in range(z.shape[0]):
            for t in range(z.shape[2]):
                one, matrix = z[b, :, t], torch.diag(gate[b, t])  # (H, D), (P, P)
                if mixing == "channels":
                    new = torch.stack([down @ matrix @ up @ head for head in one])
                elif mixing == "all":
                    flat = down.flatten(0, 1) @ matrix @ up.flatten(1) @ one.flatten()
                    new = flat.view_as(one)
                else:
                    new = down @ matrix @ up @ one
                result[b, :, t] = new
        return result

    if mixing == "heads-apart":
        return change(up[0], down[0], cos), change(up[1], down[1], sin)
    return change(up, down, cos), change(up, down, sin)


def reference(
    model: Decoder,
    tokens: Tensor,
    *,
    mixing: str = "heads",
    post_mix: str = "rowsum",
    mlp_mix: bool = True,
    gate_input: str = "mlp_out",
    changing: tuple[int, ...] = (0, 1),
    theta: Tensor | None = None,
    gain: float = 1.0,
    **ignored: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits and the last cos and sin, with both halves updated; positions 0, 1, ..."""
    w: dict[str, Tensor] = model.state_dict()
    shape = model.config
    width, (rows, length) = shape.head_dim, tokens.shape
    if theta is None:
        # Published frequencies are float32.
        theta = (10_000.0 ** -(torch.arange(0, width, 2).double() / width)).float().double()
    angles = (torch.arange(length)[:, None] * theta).repeat(1, 2)
    cos, sin = (gain * f(angles).expand(rows, shape.heads, -1, -1) for f in (torch.cos, torch.sin))

    def normed(x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + shape.norm_eps).sqrt() * w[f"{name}.weight"]

    def turned(x: Tensor) -> Tensor:
        half = torch.cat([-x[..., width // 2 :], x[..., : width // 2]], dim=-1)
        return x * cos + half * sin

    x = w["embed_tokens.weight"][tokens]
    for i in range(shape.layers):
        layer, own = f"layers.{i}", f"encodings.{i}"
        q, k, v = (
            (normed(x, f"{layer}.input_layernorm") @ w[f"{layer}.self_attn.{a}_proj.weight"].T)
            .view(rows, length, shape.heads, width)
            .transpose(1, 2)
            for a in "qkv"
        )
        scores = turned(q) @ turned(k).mT / width**0.5
        future = torch.ones(length, length).triu(1).bool()
        attention = scores.masked_fill(future, -torch.inf).softmax(-1)
        out = (attention @ v).transpose(1, 2).flatten(2)
        x = x + out @ w[f"{layer}.self_attn.o_proj.weight"].T
        if i in changing and post_mix != "off":
            parts = attention @ cos, attention @ sin
            added = attended_part(mixing, post_mix, w[f"{own}.sigma"], *parts)
            cos, sin = cos + added[0], sin + added[1]
        mlp_in = normed(x, f"{layer}.post_attention_layernorm")
        up, gate = (mlp_in @ w[f"{layer}.mlp.{a}_proj.weight"].T for a in ("up", "gate"))
        mlp_out = (F.silu(gate) * up) @ w[f"{layer}.mlp.down_proj.weight"].T
        if i in changing and mlp_mix:
            m = mlp_out if gate_input == "mlp_out" else mlp_in
            gate = F.silu(m @ w[f"{own}.gate.weight"].T)
            added = mlp_part(mixing, w[f"{own}.up"], w[f"{own}.down"], gate, cos, sin)
            cos, sin = cos + added[0], sin + added[1]
        x = x + mlp_out
    return normed(x, "norm") @ w["lm_head.weight"].T, cos, sin


MIXINGS = ["heads", "heads-apart", "channels", "all"]
OPTIONS = [
    *({"mixing": m, "post_mix": p} for m in MIXINGS for p in ("rowsum", "matrix", "off")),
    *({"mixing": m, "mlp_mix": False} for m in MIXINGS[:3]),
    {"mlp_mix": False, "post_mix": "matrix"},
    *({"mixing": m, "gate_input": "mlp_in"} for m in MIXINGS),
    {"position_size": 1},
    {"position_size": 5, "mixing": "all", "layers": "later-half"},
    {"layers": "earlier-half"},
    {"layers": "later-half", "post_mix": "off"},
]
CHANGING = {"all": (0, 1), "earlier-half": (0,), "later-half": (1,)}


def named(options: dict[str, Any]) -> str:
    return ",".join(f"{key}={value}" for key, value in options.items())


@pytest.mark.parametrize("options", OPTIONS, ids=named)
@torch.no_grad()
def test_options_against_their_formulas(options: dict[str, Any]) -> None:
    model = decoder(0.2, **options)
    tokens = tokens_of(model)
    changing = CHANGING[options.get("layers", "all")]
    expected, cos, sin = reference(model, tokens, changing=changing, **options)
    for backend in ("eager", "sdpa"):
        torch.testing.assert_close(model(tokens, backend=backend), expected, rtol=0, atol=1e-10)
    # If both halves are equal, half of the state can be left out.
    first, second = torch.stack([cos, sin]).chunk(2, dim=-1)
    halves = float((first - second).abs().max())
    kept = options.get("mixing", "heads") in ("heads", "heads-apart")
    kept |= options.get("mixing") == "all" and not options.get("mlp_mix", True)
    assert halves < 1e-10 if kept else halves > 0.1
    # The states must differ from their initial values; otherwise nothing would be tested.
    assert (cos.square() + sin.square() - 1).abs().max() > 0.1


def test_adayarn() -> None:
    """Frequencies are blended by their turns and learned, and states begin above one."""
    options: dict[str, Any] = {"scaling": "yarn", "factor": 4.0, "ramp": "rotations"}
    options["trainable"] = True
    model = decoder(**options, original_length=256)
    plain = 10_000.0 ** -(torch.arange(0, 8, 2).double() / 8)
    kept = ((256 * plain / (2 * math.pi) - 1) / (32 - 1)).clamp(0, 1)
    assert 0 < kept[1] < 1 == kept[0] and kept[2] == 0  # all three cases
    theta, gain = plain * kept + plain / 4 * (1 - kept), 0.1 * math.log(4) + 1
    far = torch.tensor([[0, 1, 5, 300, 2000]])
    encoding: Any = model.encoding
    begun = encoding.prepare(torch.zeros(1).double(), Positions(far, far))
    angles = (far[0, :, None] * theta).expand(1, 3, -1, -1)
    expected = gain * torch.cat([angles.cos(), angles.sin()], dim=-1)
    torch.testing.assert_close(begun, expected, rtol=0, atol=1e-4)  # theta is float32
    # The model has one set of frequencies, and the gradient changes them.
    assert [name for name, _ in model.encodings.named_parameters() if "theta" in name] == [
        "0.theta"
    ]
    model = decoder(0.2, **options | {"trainable": False}, original_length=256)
    tokens = tokens_of(model)
    logits, _, _ = reference(model, tokens, theta=theta, gain=gain)
    torch.testing.assert_close(model(tokens), logits, rtol=0, atol=1e-6)


@pytest.mark.parametrize("mixing", MIXINGS)
@torch.no_grad()
def test_only_mixed_heads_ignore_a_shift(mixing: str) -> None:
    model = decoder(0.2, mixing=mixing)
    tokens, ids = tokens_of(model), torch.arange(7)[None]
    moved = float((model(tokens, positions=ids + 17) - model(tokens)).abs().max())
    encoding = model.encoding
    assert encoding.shift_invariant == encoding.rotation_equivariant == (mixing == "heads")
    assert moved < 1e-10 if mixing == "heads" else moved > 0.01


@pytest.mark.parametrize("mixing", MIXINGS)
def test_row_sums_make_all_columns_alike(mixing: str) -> None:
    for post_mix, alike in (("rowsum", True), ("matrix", False)):
        model = decoder(0.2, mixing=mixing, post_mix=post_mix)
        model(tokens_of(model)).square().mean().backward()
        encoding: Any = model.encoding
        gradient = encoding.sigma.grad
        spread = (gradient - gradient[..., :1]).abs().max() / gradient.abs().max()
        assert (float(spread) < 1e-10) == alike


@pytest.mark.parametrize("options", OPTIONS, ids=named)
def test_a_new_model_is_rope(options: dict[str, Any]) -> None:
    model = decoder(**options)
    torch.manual_seed(5)
    rope, tokens = Decoder(SMALL, RoPE).double().eval(), tokens_of(model)
    logits = model(tokens)
    # Sums of wider values may have another order, so the numbers are equal only up to rounding.
    torch.testing.assert_close(logits, rope(tokens), rtol=0, atol=1e-12)
    # The first step changes only weights that are zero.
    logits.square().mean().backward()
    for name, parameter in model.encodings.named_parameters():
        assert parameter.grad is not None
        zero = name.endswith(("up", "sigma"))
        assert parameter.any() != zero
        assert parameter.grad.any() == zero


def test_the_random_half_starts_as_the_trunk() -> None:
    model = decoder(shape=ModelConfig(layers=2, heads=8, width=256, init_std=0.3))
    encoding: Any = model.encoding
    for weight in (encoding.down, encoding.gate.weight):
        assert 0.25 < float(weight.detach().std()) < 0.35


@pytest.mark.parametrize(
    ("heads", "width", "options", "expected"),
    [
        (12, 768, {}, 38_160),  # the published models: C4, and Llama 2 with 7 B parameters
        (32, 4096, {}, 533_504),
        (4, 64, {"position_size": 6}, 64 * 6 + 2 * 4 * 6 + 4 * 4),
        (4, 64, {"post_mix": "off"}, 64 * 16 + 2 * 4 * 16),
        (4, 64, {"mlp_mix": False}, 4 * 4),
        (4, 64, {"mixing": "heads-apart"}, 64 * 16 + 2 * (2 * 4 * 16 + 4 * 4)),
        (4, 64, {"mixing": "channels"}, 64 * 16 + 2 * 16 * 16 + 16 * 16),
        (4, 64, {"mixing": "all"}, 64 * 16 + 2 * 64 * 16 + 4 * 4),
    ],
)
def test_parameters(heads: int, width: int, options: dict[str, Any], expected: int) -> None:
    shape = ModelConfig(layers=3, heads=heads, width=width)
    made = [kind_of(options)(shape, i, **options) for i in (0, 1, 2)]
    counts = [sum(p.numel() for p in encoding.parameters()) for encoding in made]
    assert counts == [expected, expected, 0]
    if not options:
        assert eval(TAPE.parameters_per_layer, {"C": width, "H": heads}) == expected


@pytest.mark.parametrize(
    ("layers", "half", "expected"),
    [
        (4, "all", [0, 1, 2]),
        (4, "earlier-half", [0, 1]),
        (4, "later-half", [2]),
        (5, "earlier-half", [0, 1]),
        (5, "later-half", [2, 3]),
        (1, "all", []),
    ],
)
def test_which_layers_change_the_state(layers: int, half: Any, expected: list[int]) -> None:
    shape = ModelConfig(layers=layers)
    made = [TAPEAblations(shape, i, layers=half) for i in range(layers)]
    assert [i for i, encoding in enumerate(made) if list(encoding.parameters())] == expected
    z = torch.randn(1, 4, 6, 32)
    for encoding in made:
        assert (encoding.extra_values(z) is not None) == (encoding.layer in expected)
        if encoding.layer not in expected:
            assert encoding.update_state(z, None, z, z) is z


@torch.no_grad()
def test_ablations_without_options_are_tape() -> None:
    torch.manual_seed(5)
    ablations = Decoder(SMALL, TAPEAblations).double().eval()
    model = decoder(0.2)
    ablations.load_state_dict(model.state_dict())
    assert torch.equal(ablations(tokens_of(model)), model(tokens_of(model)))
