"""Without sigma, the state of TAPE is the state of RoPE times a real number (docs/tape.md)."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pe_bench import Decoder, ModelConfig, load_encoding

HEADS, CHANNELS, TOKENS = 4, 8, 21


def ratios_to_rope(model: Decoder, tokens: Tensor, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Return the state after each layer, divided by that before the first, (B, H, T, D/2)."""
    states = []

    def keep(hook: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def kept(*args: Tensor) -> Tensor:
            state = hook(*args)
            re, im = state.chunk(2, dim=-1)  # (B or 1, H, T, D/2) each
            states.append(torch.complex(re, im))
            return state

        return kept

    encodings: Any = model.encodings
    monkeypatch.setattr(encodings[0], "prepare", keep(encodings[0].prepare))
    for encoding in encodings:
        monkeypatch.setattr(encoding, "update_state", keep(encoding.update_state))
    with torch.no_grad():
        model(tokens)
    return [state / states[0] for state in states[1:]]


@pytest.mark.parametrize("frozen", [True, False], ids=["sigma=0", "sigma"])
def test_without_sigma_a_state_is_ropes_times_a_real_number(
    monkeypatch: pytest.MonkeyPatch, frozen: bool
) -> None:
    config = ModelConfig(
        layers=4, heads=HEADS, width=HEADS * CHANNELS, mlp_width=48, vocab_size=23,
        train_length=16, init_std=0.4,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Decoder(config, load_encoding("tape")).double().eval()
    for name, weights in model.encodings.named_parameters():
        with torch.no_grad():
            weights.normal_(0, 0.4)
            if frozen and name.endswith("sigma"):
                weights.zero_()
    tokens = torch.randint(23, (2, TOKENS))
    ratios = ratios_to_rope(model, tokens, monkeypatch)
    assert len(ratios) == config.layers
    phases = max(float((ratio.imag / ratio.abs()).abs().max()) for ratio in ratios)
    of_planes = max(float((r / r[..., :1] - 1).abs().max()) for r in ratios)
    gains = torch.stack([ratio.real for ratio in ratios[:-1]])
    assert float(gains.std()) > 0.1  # the states do change
    if frozen:  # one real number per head and token, the same in every plane
        assert phases < 1e-9 and of_planes < 1e-9
    else:
        assert phases > 0.1 and of_planes > 0.1


def test_a_real_factor_of_query_and_key_is_a_temperature() -> None:
    """<g_i R_i q, g_j R_j k> = g_i g_j <R_i q, R_j k>: no position moves."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, TOKENS, CHANNELS, generator=generator, dtype=torch.float64)
    gains = torch.rand(TOKENS, generator=generator, dtype=torch.float64) + 0.5
    logits = q @ k.T / math.sqrt(CHANNELS)  # (T, T)
    scaled = (gains[:, None] * q) @ (gains[:, None] * k).T / math.sqrt(CHANNELS)
    assert torch.allclose(scaled, gains[:, None] * gains[None] * logits)
