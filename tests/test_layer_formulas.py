"""Encodings that differ by layer or change the softmax, compared with their formulas in loops.

The formulas are in float64. They are transcribed from the papers and the published code that the
docstrings of the encodings name; no reference implementation was run.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from pe_bench.config import ModelConfig
from pe_bench.decoder.layer import AttentionLayer
from pe_bench.decoder.model import Decoder
from pe_bench.encodings.pose import PoSE
from pe_bench.layers import Layers
from pe_bench.registry import plugins

SHAPE = ModelConfig(
    layers=6, heads=2, width=16, mlp_width=16, vocab_size=9, train_length=16, init_std=0.5
)
LENGTH = 21
Logit = Callable[[Tensor, Tensor, int, int, int], Tensor]


def turned(
    x: Tensor,
    position: int,
    base: float = 10_000.0,
    planes: int = 4,
    scales: Sequence[float] = (1, 1, 1, 1),
) -> Tensor:
    """Rotate plane (m, m + 4) of (8,) channels by scales[m] * position / base^(m / 4)."""
    result = x.clone()
    for m in range(planes):
        angle = scales[m] * position * base ** (-m / 4)
        a, b = x[m], x[m + 4]
        result[m] = a * math.cos(angle) - b * math.sin(angle)
        result[m + 4] = b * math.cos(angle) + a * math.sin(angle)
    return result


def unit(x: Tensor) -> Tensor:
    return x / (x.square().mean() + 1e-6).sqrt()


def plain(q: Tensor, k: Tensor, i: int, j: int, head: int) -> Tensor:
    return q @ k / math.sqrt(8)


def rotary(q: Tensor, k: Tensor, i: int, j: int, head: int) -> Tensor:
    return plain(turned(q, i), turned(k, j), i, j, head)


def long_waves(q: Tensor, k: Tensor, i: int, j: int, head: int) -> Tensor:
    return plain(turned(q, i, 1e6), turned(k, j, 1e6), i, j, head)


def rotary_of(base: float, scales: Sequence[float] = (1, 1, 1, 1), gain: float = 1.0) -> Logit:
    """Return RoPE of a base, whose frequencies and logits are multiplied."""

    def logit(q: Tensor, k: Tensor, i: int, j: int, head: int) -> Tensor:
        q, k = turned(q, i, base, scales=scales), turned(k, j, base, scales=scales)
        return gain * plain(q, k, i, j, head)

    return logit


def normed(q: Tensor, k: Tensor, i: int, j: int, head: int) -> Tensor:
    return plain(unit(turned(q, i)), unit(turned(k, j)), i, j, head)


def times(tau: Callable[[int], float], logit: Logit) -> Logit:
    return lambda q, k, i, j, head: tau(i + 1) * logit(q, k, i, j, head)


def alibi(q: Tensor, k: Tensor, i: int, j: int, head: int) -> Tensor:
    return plain(q, k, i, j, head) - 2.0 ** (-4 * (head + 1)) * (i - j)


MEAN_LOG = sum(math.log(n) for n in range(1, 17)) / 16
EVERY = lambda i, j: j <= i  # noqa: E731
NEAR = lambda i, j: i - 4 < j <= i  # noqa: E731
CHUNK = lambda i, j: j <= i and i // 4 == j // 4  # noqa: E731

SCOUT = (1, 1, 1, 1 / 16)

CASES: dict[str, tuple[str, int, Logit, Callable[[int, int], bool]]] = {
    "SSMax at the start": (
        "log-temperature",
        0,
        times(lambda n: math.log(n) / MEAN_LOG, rotary),
        EVERY,
    ),
    "log n": (
        "log-temperature:form=log,base=nope",
        0,
        times(lambda n: math.log(n) / math.log(16), plain),
        EVERY,
    ),
    "log n beyond training": (
        "log-temperature:form=log-past",
        0,
        times(lambda n: max(1, math.log(n, 16)), rotary),
        EVERY,
    ),
    "Llama 4's": (
        "log-temperature:form=llama4,start=5",
        0,
        times(lambda n: 1 + 0.1 * math.log(1 + n // 5), rotary),
        EVERY,
    ),
    "Ministral's": (
        "log-temperature:form=ministral,start=5,scale=0.3",
        0,
        times(lambda n: 1 + 0.3 * math.log(1 + (n - 1) // 5), rotary),
        EVERY,
    ),
    "of the products alone": (
        "log-temperature:form=log,base=alibi",
        0,
        lambda q, k, i, j, h: (
            math.log(i + 1, 16) * plain(q, k, i, j, h) + alibi(q, k, i, j, h) - plain(q, k, i, j, h)
        ),
        EVERY,
    ),
    "of the bias too": (
        "log-temperature:form=log,base=alibi,bias=true",
        0,
        times(lambda n: math.log(n, 16), alibi),
        EVERY,
    ),
    "RNoPE-SWA, local": ("rnope-swa", 2, rotary, NEAR),
    "RNoPE-SWA, global": ("rnope-swa", 3, plain, EVERY),
    "iRoPE, local": ("irope", 4, normed, CHUNK),
    "iRoPE, global": (
        "irope:start=6",
        3,
        times(lambda n: 1 + 0.1 * math.log(1 + n // 6), plain),
        EVERY,
    ),
    "Gemma, local": ("gemma", 4, rotary, NEAR),
    "Gemma, global": ("gemma", 5, long_waves, EVERY),
    "Gemma 4, global": (
        "gemma:proportional=0.25",
        5,
        lambda q, k, i, j, h: plain(turned(q, i, 1e6, 1), turned(k, j, 1e6, 1), i, j, h),
        EVERY,
    ),
    "Gemma 2, local": ("gemma2:window=4", 4, rotary, NEAR),
    "Gemma 2, global": ("gemma2", 5, rotary, EVERY),
    "Gemma 3, local": ("gemma3:window=4", 4, rotary, NEAR),
    "Gemma 3, global": ("gemma3", 5, rotary_of(1e6, [1 / 8] * 4), EVERY),
    "SmolLM3, local": ("smollm3", 4, rotary_of(5e6), EVERY),
    "SmolLM3, global": ("smollm3", 3, plain, EVERY),
    "Command R7B, local": ("cohere2:window=4", 4, rotary_of(5e4), NEAR),
    "Command R7B, global": ("cohere2", 3, plain, EVERY),
    "OLMo 3, local": ("olmo3:window=4", 4, rotary_of(5e5), NEAR),
    "Llama 4, local": (  # the waves of the four planes have 6, 167, 4443 and 118142 tokens
        "llama4:chunk=4",
        4,
        lambda q, k, i, j, h: plain(
            unit(turned(q, i, 5e5, scales=SCOUT)), unit(turned(k, j, 5e5, scales=SCOUT)), i, j, h
        ),
        CHUNK,
    ),
    "Llama 4, global": (
        "llama4:start=6",
        3,
        times(lambda n: 1 + 0.1 * math.log(1 + n // 6), plain),
        EVERY,
    ),
}

# Model: window or chunk of its local layers, and the distance of two global layers.
MODELS = {
    "gemma2": (4096, 2),
    "gemma3": (1024, 6),
    "smollm3": (None, 4),
    "cohere2": (4096, 4),
    "olmo3": (4096, 4),
    "gpt-oss": (128, 2),
    "llama4": (8192, 4),
}


def layer_of(spec: str, index: int) -> tuple[Any, Tensor, Tensor, Tensor, Tensor]:
    """A layer, its input (1, T, C), and queries, keys, values (2, T, 8)."""
    torch.manual_seed(0)
    layer = AttentionLayer(SHAPE, plugins.load("encoding", spec).make, index).double().eval()
    for parameter in layer.attention.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x = torch.randn(1, LENGTH, 16, dtype=torch.float64)
    own = layer.attention
    heads = [own.split_heads(project(x))[0] for project in (own.q_proj, own.k_proj, own.v_proj)]
    return layer, x, *cast(tuple[Tensor, Tensor, Tensor], tuple(heads))


def all_logits(q: Tensor, k: Tensor, logit: Logit, sees: Callable[[int, int], bool]) -> Tensor:
    """Return logits, (2, T, T), -inf at masked keys."""
    found = torch.full((2, LENGTH, LENGTH), -math.inf, dtype=torch.float64)
    for head in range(2):
        for i in range(LENGTH):
            for j in filter(lambda j: sees(i, j), range(LENGTH)):
                found[head, i, j] = logit(q[head, i], k[head, j], i, j, head)
    return found


def mixed(layer: Any, shares: Tensor, v: Tensor) -> Tensor:
    return cast(Tensor, layer.attention.o_proj((shares @ v).transpose(0, 1).flatten(1)))


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_logits(case: str) -> None:
    spec, index, logit, sees = CASES[case]
    layer, x, q, k, v = layer_of(spec, index)
    expected = mixed(layer, all_logits(q, k, logit, sees).softmax(-1), v)
    torch.testing.assert_close(layer(x)[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_windows_of_models(name: str) -> None:
    window, every = MODELS[name]
    encoding = cast(Layers, plugins.load("encoding", name).make(SHAPE.changed(layers=12), 0))
    for layer in range(12):
        visible = encoding.at_layer(layer).visible
        is_global = layer % every == every - 1
        seen = visible and (visible.window or visible.chunk)
        assert seen == (None if is_global else window)


@pytest.mark.parametrize("layer", [0, 1])
@torch.no_grad()
def test_gpt_oss(layer: int) -> None:
    made, x, q, k, v = layer_of("gpt-oss:window=4", layer)
    sinks = cast(Any, made.encoding).at_layer(layer).logits
    sinks.copy_(torch.tensor([-1.0, 2.0]))
    first = 4 * math.log(4096 / (2 * math.pi * 32)) / math.log(150_000)  # above plane 1
    last = 4 * math.log(4096 / (2 * math.pi)) / math.log(150_000)  # below plane 3
    share = (2 - first) / (last - first)
    scales = (1, 1, 1 - share + share / 32, 1 / 32)
    logit = rotary_of(150_000, scales, gain=(1 + 0.1 * math.log(32)) ** 2)
    weights = all_logits(q, k, logit, NEAR if layer == 0 else EVERY).exp()
    sink = torch.tensor([-1.0, 2.0], dtype=torch.float64).exp()[:, None, None]
    expected = mixed(made, weights / (weights.sum(-1, keepdim=True) + sink), v)
    torch.testing.assert_close(made(x)[0], expected, rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_sinks() -> None:
    layer, x, q, k, v = layer_of("sinks:base=alibi", 0)
    layer.encoding.logits.copy_(torch.tensor([-1.0, 2.0]))
    weights = all_logits(q, k, alibi, EVERY).exp()
    sink = torch.tensor([-1.0, 2.0], dtype=torch.float64).exp()[:, None, None]
    shares = weights / (weights.sum(-1, keepdim=True) + sink)
    torch.testing.assert_close(layer(x)[0], mixed(layer, shares, v), rtol=1e-6, atol=1e-7)


@torch.no_grad()
def test_softpick() -> None:
    layer, x, q, k, v = layer_of("softpick:base=alibi", 0)
    logits = all_logits(q, k, alibi, EVERY)
    differences = (logits.exp() - 1).masked_fill(logits == -math.inf, 0)
    shares = differences.relu() / (differences.abs().sum(-1, keepdim=True) + 1e-6)
    assert float(shares.sum(-1).max()) <= 1 and (shares == 0).double().mean() > 0.6
    torch.testing.assert_close(layer(x)[0], mixed(layer, shares, v))
    far = layer.encoding.normalise(torch.tensor([[[[800.0, 799.0, -math.inf]]]]).double())
    expected = torch.tensor([1, math.exp(-1), 0]) / (1 + math.exp(-1))
    torch.testing.assert_close(far[0, 0, 0], expected.double())


def test_pose() -> None:
    encoding = PoSE(SHAPE, target=40)
    ids, lengths = torch.arange(16)[None], torch.full((300,), 16)
    assert torch.equal(encoding.eval().draw_positions(ids, lengths), ids)
    torch.manual_seed(0)
    drawn = encoding.train().draw_positions(ids, lengths)
    assert drawn.shape == (300, 16) and drawn[:, 0].eq(0).all()
    steps = drawn.diff(dim=1)  # one of them skips
    assert steps.min() == 1 and (steps > 1).sum(1).max() == 1
    cuts = {int(row.argmax()) + 1 for row in steps if row.max() > 1}
    assert cuts == set(range(1, 9))
    assert int(drawn[:, -1].min()) == 15 and int(drawn[:, -1].max()) == 39


def test_pose_trains_rows_apart() -> None:
    config = SHAPE.changed(train_length=8)
    model = Decoder(config, plugins.load("encoding", "pose").make).train()
    tokens = torch.arange(8).repeat(4, 1)
    torch.manual_seed(1)
    rows = model(tokens)
    assert not torch.allclose(rows[0], rows[1]) and torch.isfinite(rows).all()
    alike = model.eval()(tokens)
    torch.testing.assert_close(alike[0], alike[1])
