"""Parts of the decoder that only a GPU or a rare call reaches, on a CPU."""

import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pe_bench.config import BlockConfig, ModelConfig
from pe_bench.decoder import attention, blocked, flex, sdpa
from pe_bench.decoder.attention import attend
from pe_bench.decoder.attention_layers import AttentionLayers
from pe_bench.decoder.layer import AttentionLayer
from pe_bench.decoder.logits import LogitTerms
from pe_bench.decoder.model import Decoder
from pe_bench.encoding import Encoding
from pe_bench.errors import InputError
from pe_bench.positions import Positions, in_order
from pe_bench.visibility import Visibility

B, H, T, D = 2, 3, 20, 4


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


Q, K, V = (normal(B, H, T, D, seed=seed) for seed in range(3))


@pytest.mark.parametrize("rows", [1, B])
@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("of", ["distance", "separable", "both"])
def test_the_terms_of_flex_attention(of: str, learned: bool, rows: int) -> None:
    """The compiled function of a logit has the value and the gradient of the bias."""
    table = normal(H, T).requires_grad_(learned) if of != "separable" else None
    c = normal(rows, H, T).requires_grad_(learned) if of != "distance" else None
    add = flex._score_mod(Q, LogitTerms(by_distance=table, separable=c))
    assert add is not None
    axes = [torch.arange(size) for size in (B, H, T, T)]
    row, head, query, key = torch.meshgrid(*axes, indexing="ij")
    scores = normal(B, H, T, T)
    found = add(scores, row, head, query, key)
    expected = scores.clone()
    if table is not None:
        expected = expected + table[:, (query[0, 0] - key[0, 0]).clamp(min=0)]
    if c is not None:
        expected = expected + c[..., None] - c[..., None, :]
    causal = torch.ones(T, T).tril().bool()
    torch.testing.assert_close(found[..., causal], expected[..., causal])
    if learned:
        weights = normal(B, H, T, T, seed=3) * causal
        leaves = [leaf for leaf in (table, c) if leaf is not None]
        actual = torch.autograd.grad((found * weights).sum(), leaves)
        torch.testing.assert_close(actual, torch.autograd.grad((expected * weights).sum(), leaves))


def test_without_terms_flex_attention_has_no_function() -> None:
    assert flex._score_mod(Q, LogitTerms()) is None


def test_a_kernel_that_does_not_compile_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "_options", {})
    table = normal(H, T)
    terms = LogitTerms(by_distance=table)
    flex._options[flex._signature(Q, V, terms)] = len(flex.KERNEL_OPTIONS) - 1
    assert flex.compiles(Q, V, terms)
    flex._options[flex._signature(Q, V, terms)] += 1
    assert not flex.compiles(Q, V, terms)
    others: list[tuple[Tensor, Tensor, LogitTerms]] = [
        (Q.float(), V, terms),
        (Q[..., :2], V, terms),
        (Q, V[..., :2], terms),
        (Q, V, LogitTerms()),
        (Q, V, LogitTerms(by_distance=table.float())),
        (Q, V, LogitTerms(by_distance=table.clone().requires_grad_())),
        (Q, V, LogitTerms(separable=table[None])),
        (Q.clone().requires_grad_(), V, terms),
    ]
    assert all(flex.compiles(*other) for other in others)
    with torch.no_grad():
        assert not flex.compiles(Q.clone().requires_grad_(), V, terms)


def test_block_sizes_are_tried_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler is replaced; importing it takes a second."""

    class InductorError(RuntimeError):
        pass

    compiler: Any = SimpleNamespace(InductorError=InductorError)
    monkeypatch.setitem(sys.modules, "torch._inductor.exc", compiler)
    monkeypatch.setattr(flex, "_options", {})
    calls: list[Any] = []
    works = 2

    def compiled(*args: Any, **given: Any) -> str:
        calls.append((args, given))
        if flex.KERNEL_OPTIONS.index(given["kernel_options"]) < works:
            raise InductorError("out of registers\nand more")
        return "out"

    monkeypatch.setattr(flex, "_compiled", lambda: compiled)
    for tried in (flex.KERNEL_OPTIONS, flex.KERNEL_OPTIONS[2:]):  # the second call remembers
        calls.clear()
        assert flex._compile_first(("key",))(1, 2, scale=3) == "out"
        assert calls == [((1, 2), {"kernel_options": each, "scale": 3}) for each in tried]
    works = 3
    with pytest.raises(flex.CompilationError, match=r"^out of registers$"):
        flex._compile_first(("other",))(1)
    assert flex._options == {("key",): 2, ("other",): 3}


def test_another_backend_is_used_if_flex_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = attention._attend

    def broken(backend: Any, *given: Any) -> Tensor:
        if backend == "flex":
            raise flex.CompilationError("too large")
        return exact(backend, *given)

    choices = iter(["flex", "eager"])
    monkeypatch.setattr(attention, "FLEX_DEVICES", ["cpu"])
    monkeypatch.setattr(attention, "_attend", broken)
    monkeypatch.setattr(attention, "fastest", lambda *_: next(choices))
    with (
        attention.record_backends() as used,
        pytest.warns(UserWarning, match="using backend eager instead of flex: too large"),
    ):
        found = attend(Q, K, V)
    assert used == ["eager"]
    monkeypatch.setattr(attention, "fastest", lambda *_: "sdpa")
    torch.testing.assert_close(found, attend(Q, K, V, backend="eager"))
    with pytest.raises(InputError, match=r"flex is not possible here: .*too large\); use sdpa"):
        attend(Q, K, V, backend="flex")


@pytest.mark.parametrize("of", ["plain", "distance"])
def test_blocks_of_keys_in_any_order(of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that drops keys has columns for each row, some of which are missing."""
    monkeypatch.setitem(blocked.MAX_QUERIES, "cpu", 4)
    monkeypatch.setattr(blocked, "MIN_QUERIES", 4)
    new = 6
    columns = torch.stack([torch.arange(T) + 3, torch.arange(T) - 4])
    index = torch.arange(T - new, T).expand(B, -1)
    every = in_order(T + 3, torch.device("cpu")).with_keys(columns, index)
    where = replace(every, query=columns[:, -new:], visible=Visibility(window=7))

    def bias(positions: Positions) -> Tensor:
        return -positions.distance[:, None].double()  # (B, 1, t, S)

    terms = LogitTerms(where, bias=bias if of == "distance" else None)
    expected = attend(Q[:, :, -new:], K, V, terms, backend="eager")
    found = attend(Q[:, :, -new:], K, V, terms, backend="blocked")
    torch.testing.assert_close(found, expected)
    hidden = columns[1] < 0
    changed = K.clone()
    changed[1, :, hidden] = 9.0
    torch.testing.assert_close(attend(Q[:, :, -new:], changed, V, terms), expected)


def test_settings_have_a_block_that_is_not_that_of_a_llama() -> None:
    """Fields that were added later are in the settings only if they differ."""
    assert "block" not in ModelConfig().settings
    plain = ModelConfig(block=BlockConfig(head_dim=16)).settings["block"]
    assert plain["head_dim"] == 16 and plain["norms"] == "input"
    assert not {"norm", "gated", "bias"} & plain.keys()
    other = ModelConfig(block=BlockConfig(norm="fixed", gated=False)).settings["block"]
    assert (other["norm"], other["gated"]) == ("fixed", False) and "bias" not in other
    assert "bias" in ModelConfig(block=BlockConfig(bias=True)).settings["block"]


def test_a_backward_pass_that_does_not_compile_is_tried_before_it_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class InductorError(RuntimeError):
        pass

    class Fragile(torch.autograd.Function):
        """Adds 1; its backward pass compiles with the last block sizes only."""

        @staticmethod
        def forward(ctx: Any, q: Tensor, number: int) -> Tensor:
            ctx.number = number
            return q + 1

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
            passes.append(ctx.number)
            if ctx.number < len(flex.KERNEL_OPTIONS) - 1:
                raise InductorError("out of shared memory")
            return grads[0], None

    def compiled(q: Tensor, *, kernel_options: dict[str, int]) -> Tensor:
        number = flex.KERNEL_OPTIONS.index(kernel_options)
        out: Tensor = Fragile.apply(q, number)  # type: ignore[no-untyped-call]
        return out

    passes: list[int] = []
    compiler: Any = SimpleNamespace(InductorError=InductorError)
    monkeypatch.setitem(sys.modules, "torch._inductor.exc", compiler)
    monkeypatch.setattr(flex, "_options", {})
    monkeypatch.setattr(flex, "_differentiated", set())
    monkeypatch.setattr(flex, "_compiled", lambda: compiled)
    q = torch.ones(2, requires_grad=True)
    for _ in range(2):
        flex._compile_first(("key",), [q])(q).sum().backward()
    last = len(flex.KERNEL_OPTIONS) - 1
    assert passes == [*range(last + 1), last, last]
    assert q.grad is not None
    assert q.grad.tolist() == [2, 2]


class Constants(Encoding):
    """Parameters and constants of each layer in the default dtype."""

    shared = False

    def __init__(self, model: ModelConfig, layer: int = 0) -> None:
        super().__init__(model, layer)
        self.slope = torch.nn.Parameter(torch.full((model.heads,), 0.1))
        self.register_buffer("table", 100.0 ** -(torch.arange(8) / 8), persistent=False)
        self.register_buffer("saved", 100.0 ** -(torch.arange(8) / 8))


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("make", [Decoder, AttentionLayers, AttentionLayer])
def test_encodings_are_float32_or_wider_at_any_default_dtype(
    make: Callable[..., nn.Module], default: torch.dtype
) -> None:
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(default)
        made = make(ModelConfig(layers=2, heads=2, width=8, vocab_size=9), Constants)
        assert torch.get_default_dtype() == default
    finally:
        torch.set_default_dtype(before)
    expected = torch.promote_types(default, torch.float32)
    encodings = [part for part in made.modules() if isinstance(part, Constants)]
    assert len(encodings) == (1 if make is AttentionLayer else 2)
    for each in encodings:
        for tensor in (each.slope, *each.buffers()):
            assert tensor.dtype == expected
        table: Any = each.table
        torch.testing.assert_close(table, (100.0 ** -(torch.arange(8) / 8)).to(expected))


def test_a_separable_bias_in_float32_does_not_depend_on_the_last_key() -> None:
    """In a float64 model, its differences are exact."""
    c = normal(1, H, T).float()
    folded = sdpa._fold(Q, K, c, 1.0)[1][..., -1]  # (B, H, T)
    exact = (c[..., :1].double() - c.double()).expand(B, -1, -1)
    torch.testing.assert_close(folded - folded[..., :1], exact, atol=1e-14, rtol=0)
