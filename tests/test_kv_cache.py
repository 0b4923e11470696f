"""Going back to fewer tokens in a KV cache, also in layers that keep only a window."""

from typing import Any

import pytest
import torch
from torch import Tensor

from pe_bench.config import ModelConfig
from pe_bench.decoder.cache import Cache
from pe_bench.decoder.model import Decoder
from pe_bench.encodings.rope import RoPE
from pe_bench.errors import InputError
from pe_bench.registry import plugins
from pe_bench.visibility import Visibility

SHAPE = ModelConfig(
    layers=4, heads=2, width=16, mlp_width=16, vocab_size=50, train_length=32, init_std=0.3
)
WINDOWS = ["rnope-swa:window=8", "first tokens", "llama4:chunk=8"]
SPECS = ["rope", "tape", "fox", *WINDOWS]
TOKENS = torch.randint(50, (2, 40), generator=torch.Generator().manual_seed(0))


class FirstTokens(RoPE):
    visible = Visibility(window=6, first=2)


def decoder(spec: str) -> Decoder:
    torch.manual_seed(0)
    make: Any = FirstTokens
    if spec != "first tokens":
        make = plugins.load("encoding", spec).make
    return Decoder(SHAPE, make).double().eval()


def continued(model: Decoder, cache: Cache, start: int, stop: int) -> Tensor:
    """Return the logits of tokens that are fed one by one, (B, T, V)."""
    steps = [model(TOKENS[:, column : column + 1], cache) for column in range(start, stop)]
    return torch.cat(steps, dim=1)


@torch.no_grad()
@pytest.mark.parametrize("spec", SPECS)
def test_a_cache_is_truncated_or_refuses_it(spec: str) -> None:
    model, cache = decoder(spec), Cache(2, 40)
    model(TOKENS[:, :20], cache)
    continued(model, cache, 20, 30)
    expected = model(TOKENS)
    if spec in WINDOWS:
        with pytest.raises(InputError, match=r"has dropped keys .* continue from cache.branch\(\)"):
            cache.truncate(torch.tensor([21, 30]))
    else:
        cache.truncate(torch.tensor([27, 27]))
        found = continued(model, cache, 27, 35)
        torch.testing.assert_close(found, expected[:, 27:35])
    cache.truncate(torch.tensor([0, 0]))
    start = model(TOKENS[:, :20], cache)
    found = torch.cat([start, continued(model, cache, 20, 40)], dim=1)
    torch.testing.assert_close(found, expected)


@torch.no_grad()
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("steps", [0, 5])
def test_a_branch_leaves_the_cache_as_it_is(spec: str, steps: int) -> None:
    model, cache = decoder(spec), Cache(2, 40)
    model(TOKENS[:, :20], cache)
    if steps:
        continued(model, cache, 20, 20 + steps)
    expected = model(TOKENS)
    for _ in range(2):
        branch = cache.branch()
        model((TOKENS[:, 20 + steps : 30] + 1) % 50, branch)  # other tokens
    found = continued(model, cache, 20 + steps, 40)
    torch.testing.assert_close(found, expected[:, 20 + steps :])


@torch.no_grad()
@pytest.mark.parametrize("spec", ["rnope-swa:window=8", "first tokens"])
def test_keys_that_are_still_there_are_kept(spec: str) -> None:
    """Rows shorter than the window have lost no key."""
    model, cache = decoder(spec), Cache(2, 40)
    model(TOKENS[:, :3], cache)
    continued(model, cache, 3, 6)
    cache.truncate(torch.tensor([4, 5]))
    new = torch.stack([TOKENS[0, 4:9], TOKENS[1, 5:10]])
    found = torch.cat([model(step, cache) for step in new.split(1, dim=1)], dim=1)
    expected = model(TOKENS)
    torch.testing.assert_close(found, torch.stack([expected[0, 4:9], expected[1, 5:10]]))


def test_each_row_has_a_length() -> None:
    model, cache = decoder("rope"), Cache(2, 8)
    with torch.no_grad():
        model(TOKENS[:, :5], cache)
    with pytest.raises(InputError, match=r"truncate needs 2 lengths, one for each row, not \(1,\)"):
        cache.truncate(torch.tensor([3]))
