"""Checks that the backends of attention agree with the formula."""

from collections.abc import Iterator

import torch
from torch import Tensor

from pe_bench.checks.differences import difference
from pe_bench.checks.findings import NotApplicable
from pe_bench.checks.kernels import LENGTHS, compare_kernels
from pe_bench.checks.ledger import blocks_of
from pe_bench.checks.subject import Subject, outputs_and_gradients
from pe_bench.decoder import blocked
from pe_bench.decoder.attention import BACKENDS, Backend
from pe_bench.decoder.model import Decoder
from pe_bench.errors import InputError

SMALL = 1e-3  # errors are relative to the gradient, or to this part of the largest gradient


def backends(subject: Subject) -> str | None:
    """Every attention backend gives the outputs and gradients of the formula."""
    model = subject.model()
    tokens = subject.tokens()
    expected, gradients = outputs_and_gradients(model, tokens, "eager")
    # Some gradients are zero except for rounding, such as for a bias that is equal for all keys.
    least = SMALL * max(float(gradient.abs().max()) for gradient in gradients.values())
    with blocks_of(blocked.MIN_QUERIES):  # divide even short sequences
        for backend in _serving(model, tokens):
            outputs, others = outputs_and_gradients(model, tokens, backend)
            changes = f"backend {backend} changes"
            wrong = difference(outputs, expected, f"{changes} the outputs")
            if wrong is not None:
                return wrong
            for name, gradient in gradients.items():
                if name not in others:
                    return f"backend {backend} gives no gradient to {name}"
                what = f"{changes} the gradient of {name}"
                wrong = difference(others[name], gradient, what, least=least)
                if wrong is not None:
                    return wrong
    return None


def kernels(subject: Subject) -> str | None:
    """The fused kernels of a GPU agree with the formula in float32 and bfloat16."""
    if subject.device == "cpu":
        raise NotApplicable("needs a GPU: --device cuda")
    model = subject.model(torch.float32, layers=2)
    others = [backend for backend in BACKENDS if backend != "eager"]
    return compare_kernels(model, subject.tokens(max(LENGTHS)), others)


def _serving(model: Decoder, tokens: Tensor) -> Iterator[Backend]:
    """Yield the backends that can train the encoding, except the reference formula."""
    for backend in BACKENDS:
        try:
            model.hidden(tokens[:, :2], backend=backend)
        except InputError:
            continue
        if backend != "eager":
            yield backend
