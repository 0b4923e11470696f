"""Compare fused GPU kernels with the reference formula, in the precisions of runs."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from pe_bench.decoder.attention import Backend
from pe_bench.decoder.model import Decoder
from pe_bench.errors import InputError

LENGTHS = (63, 64, 192, 256)
COMPILED_LENGTHS = (192,)  # flex attention is compiled for each length, which takes seconds
BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""Bounds of the relative error, or twice the formula's error in this precision if larger."""

FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]


def compare_kernels(
    model: Decoder, tokens: Tensor, backends: Sequence[Backend], lengths: Sequence[int] = LENGTHS
) -> str | None:
    """Return the deviation of a backend from the formula in float64, or None if within bounds.

    A fallback of torch's attention to the kernel with T x S memory is an error.

    Args:
        model: model in float32.
        tokens: (B, T) ids; the first ones of each row are used.
        backends: backends to compare; backends that do not support the encoding are skipped.
        lengths: numbers of tokens to test.
    """
    for length in dict.fromkeys(min(n, tokens.shape[1]) for n in lengths):
        truth = _results(model.double(), tokens[:, :length], "eager", torch.float64)
        for dtype, bound in BOUNDS.items():
            of_formula = _results(model.float(), tokens[:, :length], "eager", dtype)
            for backend in backends:
                if backend == "flex" and length not in COMPILED_LENGTHS:
                    continue
                try:
                    with sdpa_kernel(FUSED) if backend == "sdpa" else nullcontext():
                        found = _results(model.float(), tokens[:, :length], backend, dtype)
                except InputError:  # not supported in this precision
                    continue
                for name, expected in truth.items():
                    error = _error(found[name], expected)
                    if not error <= max(bound, 2 * _error(of_formula[name], expected)):
                        kind = str(dtype).removeprefix("torch.")
                        return f"{backend}, {kind}, {length} tokens: {name} {error:.1e} off"
    return None


def _results(
    model: Decoder, tokens: Tensor, backend: Backend, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return outputs and gradients of all weights (decoder and encoding), in float64."""
    model.zero_grad()
    autocast: AbstractContextManager[object] = nullcontext()
    if dtype == torch.bfloat16:
        autocast = torch.autocast(tokens.device.type, dtype, cache_enabled=False)
    with autocast:
        hidden = model.hidden(tokens, backend=backend)  # (B, T, C)
    weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(1))
    (hidden.float() * weights.to(hidden.device)).sum().backward()
    own = {id(parameter) for parameter in model.encodings.parameters()}
    found = {"outputs": [hidden.detach()], "gradients": [], "gradients of the encoding": []}
    for parameter in model.parameters():
        if parameter.grad is not None:
            name = "gradients of the encoding" if id(parameter) in own else "gradients"
            found[name].append(parameter.grad)
    joined = {}
    for name, tensors in found.items():
        if tensors:
            joined[name] = torch.cat([tensor.double().flatten() for tensor in tensors])  # (N,)
    return joined


def _error(actual: Tensor, expected: Tensor) -> float:
    """Return the relative root mean square error."""
    size = expected.square().mean().sqrt().clamp(min=1e-30)
    return float((actual - expected).square().mean().sqrt() / size)
