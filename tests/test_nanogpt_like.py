"""The example model with pe-bench's attention layers learns and generates."""

from typing import Any

import pytest
import torch
from helpers import CODED, some_slow
from scripts import load_script

import pe_bench


def example() -> Any:
    return load_script("examples/nanogpt_like.py")


@pytest.mark.parametrize(
    "spec",
    some_slow([*CODED, "rope:scaling=dynamic-ntk,factor=2"], ["rope", "tape"]),
)
def test_it_learns_and_generates(spec: str) -> None:
    """Generated tokens beyond the training length are equal with and without a cache."""
    shape = pe_bench.ModelConfig(
        layers=2, heads=2, width=16, vocab_size=128, train_length=16,
        digit_ids=tuple(b"0123456789"), separator_ids=tuple(b" "),
    )  # fmt: skip
    nanogpt = example()
    model = nanogpt.GPT(shape, spec).double()
    data = torch.tensor(list(nanogpt.TEXT.encode()))
    losses = nanogpt.train(model, data, steps=12, length=16)
    assert losses[-1] < losses[0] - 0.3
    model.eval()
    prompts = data[:24].view(2, 12)
    answers = model.generate(prompts, new=8, use_cache=True)
    assert answers.shape == (2, 20)
    assert torch.equal(answers, model.generate(prompts, new=8, use_cache=False))
