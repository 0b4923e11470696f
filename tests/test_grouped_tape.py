"""TAPE with grouped queries: its formula, its checks, every backend."""

import pytest
import torch
import torch.nn.functional as F
from helpers import some_slow
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex

from pe_bench.checks.encodings import CHECKS
from pe_bench.checks.findings import NotApplicable
from pe_bench.checks.subject import Subject
from pe_bench.config import ModelConfig
from pe_bench.decoder import attention
from pe_bench.decoder.attention import BACKENDS
from pe_bench.decoder.cache import Cache
from pe_bench.decoder.layer import AttentionLayer
from pe_bench.decoder.model import Decoder
from pe_bench.encodings.tape import TAPE
from pe_bench.registry import plugins

SHAPE = ModelConfig(layers=3, heads=6, kv_heads=2, width=48, mlp_width=32, vocab_size=40)
SPECS = [
    "tape",
    "tape:scaling=yarn,factor=4",
    "tape-ablations",
    "tape-ablations:mixing=channels,post_mix=matrix",
    "tape-ablations:mixing=heads-apart",
    "tape-ablations:mixing=all",
]


def decoder(spec: str = "tape") -> Decoder:
    """Return a model in float64 whose encoding has random weights."""
    torch.manual_seed(0)
    model = Decoder(SHAPE, plugins.load("encoding", spec).make).double().eval()
    with torch.no_grad():
        for parameter in model.encodings.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def tokens(length: int = 20) -> Tensor:
    return torch.randint(40, (2, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.slow
@pytest.mark.usefixtures("four_layers")
@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("spec", SPECS)
def test_checks(spec: str, check: str, kv_heads: int) -> None:
    subject = Subject(plugins.load("encoding", spec).make, kv_heads=kv_heads)
    try:
        assert CHECKS[check](subject) is None
    except NotApplicable as claim:
        assert str(claim)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("spec", some_slow(SPECS, []))
@torch.no_grad()
def test_backends_and_cache(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *_: None)
    monkeypatch.setattr(attention, "FLEX_DEVICES", ["cpu"])
    model = decoder(spec)
    expected = model(tokens(), backend="eager")
    for backend in BACKENDS:
        torch.testing.assert_close(model(tokens(), backend=backend), expected)
    cache = Cache(2, 20)
    steps = [model(step, cache) for step in tokens().split([9, 1, 10], dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), expected)


@torch.no_grad()
def test_the_cache_has_key_heads_only() -> None:
    model = decoder()
    cache = Cache(2, 20)
    model(tokens(), cache)
    k_and_v = 2 * SHAPE.kv_heads * SHAPE.head_dim
    states = SHAPE.kv_heads * SHAPE.head_dim
    assert cache.numbers_per_token == SHAPE.layers * k_and_v + (SHAPE.layers - 1) * states


@torch.no_grad()
def test_the_formula() -> None:
    """One layer, head by head: z_g + sigma_g (mean over its query heads of A_h z_g), then the mix.

    Each A_h rotates q_h and k_g by z_g.
    """
    torch.manual_seed(0)
    layer = AttentionLayer(SHAPE, TAPE, 1).double()
    tape = layer.encoding
    assert isinstance(tape, TAPE)
    for parameter in tape.parameters():
        parameter.normal_()
    z = torch.randn(2, 2, 5, 4, dtype=torch.complex128)  # (B, G, T, D/2)
    x = torch.randn(2, 5, 48).double()
    m = torch.randn(2, 5, 48).double()
    state = torch.cat([z.real, z.imag], dim=-1)  # (B, G, T, D)
    _, extra = layer.attend(x, state=state, backend="eager")
    actual = layer.update_state(state, extra, x, m)

    def complex_of(projected: Tensor) -> Tensor:
        halves = projected.unflatten(-1, (-1, 2, 4)).transpose(1, 2)  # (B, heads, T, 2, D/2)
        return torch.complex(halves[..., 0, :], halves[..., 1, :])

    q = complex_of(layer.attention.q_proj(x))  # (B, H, T, D/2)
    k = complex_of(layer.attention.k_proj(x))  # (B, G, T, D/2)
    later = torch.ones(5, 5).triu(1).bool()
    gathered = []
    for g in range(2):
        means = []
        for h in range(3 * g, 3 * g + 3):
            logits = (q[:, h] * z[:, g]) @ (k[:, g] * z[:, g]).conj().mT
            shares = (logits.real / 8**0.5).masked_fill(later, -torch.inf).softmax(-1)
            means.append(shares.to(z.dtype) @ z[:, g])
        gathered.append(z[:, g] + tape.sigma[g].sum() * sum(means) / 3)
    both = torch.stack(gathered, dim=1)  # (B, G, T, D/2)
    gate = F.silu(tape.gate(m)).to(z.dtype)
    rows = torch.einsum("kg,bgte->btke", tape.up.to(z.dtype), both) * gate[..., None]
    expected = both + torch.einsum("gk,btke->bgte", tape.down.to(z.dtype), rows)
    found = torch.complex(*actual.chunk(2, dim=-1))
    torch.testing.assert_close(found, expected)


@torch.no_grad()
def test_a_new_model_is_rope() -> None:
    torch.manual_seed(0)
    tape = Decoder(SHAPE, plugins.load("encoding", "tape").make).eval()
    torch.manual_seed(0)
    rope = Decoder(SHAPE, plugins.load("encoding", "rope").make).eval()
    torch.testing.assert_close(tape(tokens()), rope(tokens()))


def test_ablations_without_options_have_the_shapes_of_tape() -> None:
    shapes = [
        {name: p.shape for name, p in decoder(spec).named_parameters()}
        for spec in ("tape", "tape-ablations")
    ]
    assert shapes[0] == shapes[1]
    assert shapes[0]["encodings.0.up"] == (8, 2)
