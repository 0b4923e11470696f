"""Relatives of RoPE against numbers of public implementations, and against their formulas."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from pe_bench.config import ModelConfig
from pe_bench.decoder import hooks
from pe_bench.decoder.cache import Cache
from pe_bench.decoder.logits import attention_logits
from pe_bench.decoder.model import Decoder
from pe_bench.positions import Positions
from pe_bench.registry import plugins

SHAPE = ModelConfig(heads=3, width=24, train_length=64)


def make(spec: str, shape: ModelConfig = SHAPE, layer: int = 0) -> Any:
    return plugins.load("encoding", spec).make(shape, layer)


def logits(encoding: Any, q: Tensor, k: Tensor, ids: Tensor) -> Tensor:
    """Logits as attention makes them, -inf where masked."""
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


# All


@torch.no_grad()
@pytest.mark.parametrize("spec", ["pope:start=uniform"])
def test_grouped_queries(spec: str) -> None:
    """Two key heads serve four query heads; a cache changes nothing."""
    config = ModelConfig(layers=2, heads=4, kv_heads=2, width=32, mlp_width=8, init_std=0.3)
    model = Decoder(config, plugins.load("encoding", spec).make).double().eval()
    for parameter in model.encodings.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    tokens = torch.arange(24).reshape(2, 12)
    cache = Cache(2, 12)
    steps = torch.cat([model(step, cache) for step in tokens.split([7, 1, 4], dim=1)], dim=1)
    torch.testing.assert_close(steps, model(tokens), rtol=0, atol=1e-12)
