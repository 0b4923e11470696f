"""Remapped distances of RoPE, compared with published code and with formulas in loops."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pe_bench.config import ModelConfig
from pe_bench.decoder import hooks
from pe_bench.decoder.attention import attend
from pe_bench.decoder.logits import attention_logits
from pe_bench.decoder.model import Decoder
from pe_bench.encodings.drope import DroPE
from pe_bench.encodings.rope import Remap
from pe_bench.positions import Positions, in_order
from pe_bench.registry import catalogue, plugins

L0 = 16
HEAD_DIM = 8
SHAPE = ModelConfig(heads=2, width=2 * HEAD_DIM, train_length=L0)
NAMES = [
    n for n in catalogue.names("encoding") if issubclass(plugins.load("encoding", n).cls, Remap)
]

# Results of published code, and its options.
PUBLISHED = {
    "self_extend_w12_g4": "self-extend:window=12,group=4",
    "self_extend_w12_g4_log16": "self-extend:window=12,group=4,log_n=true",
    "self_extend_w12_g5_decoded": "self-extend:window=12,group=5",
    "dual_chunk_12_4": "dual-chunk:chunk=12,local=4",
    "dual_chunk_12_7": "dual-chunk:chunk=12,local=7",
    "string_13_2": "string-rope:offset=13,local=2",
    "string_13_2_factor": f"string-rope:offset=13,local=2,gain={1 + 0.1 * math.log(2)}",
    "lm_infinite_3_12": "lm-infinite:sinks=3,window=12",
    "streaming_llm_3_9": "streaming-llm:sinks=3,window=10",
}


def make(spec: str) -> Any:
    return plugins.load("encoding", spec).make(SHAPE, 0).eval()


def turned(encoding: Any, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Positions]:
    """Return queries and keys as in attention, and their positions."""
    positions = in_order(q.shape[2], q.device)
    return *hooks.transform_qk(encoding, q, k, positions), positions


@pytest.mark.parametrize("key", PUBLISHED)
def test_published_code(golden: Any, key: str) -> None:
    arrays, encoding = golden("remaps"), make(PUBLISHED[key])
    q, k, positions = turned(encoding, arrays["q"], arrays["k"])
    out = attend(q, k, arrays["v"], hooks.logit_terms(encoding, positions, 1))
    first = q.shape[2] - arrays[key].shape[2]  # some published code decodes only the later tokens
    arrays.check(key, out[:, :, first:])


# The formulas: f(i, j), None if j is masked.
F = Callable[[int, int], float | None]


def rerope(i: int, j: int) -> float:
    return min(i - j, 4)


def leaky(i: int, j: int) -> float:
    return i - j if i - j < 5 else 5 + (i - j - 5) / 16


def self_extend(i: int, j: int) -> float:
    return i - j if i - j < 6 else i // 4 - j // 4 + 6 - 6 // 4


def dual_chunk(i: int, j: int) -> float:
    c = 12 - 2
    if i // c == j // c:
        return i % c - j % c
    query = i % c + c if i // c == j // c + 1 else 2 * c - 1
    return min(query, 12) - j % c


def string(i: int, j: int) -> float:
    return i - j if i - j < 5 else i - j - 5 + 1


def lm_infinite(i: int, j: int) -> float | None:
    return min(i - j, L0) if j < 10 or i - j < L0 else None


def streaming_llm(i: int, j: int) -> float | None:
    seen = [*range(min(4, i + 1)), *range(max(4, i - L0 + 5), i + 1)]
    return seen.index(i) - seen.index(j) if j in seen else None


FORMULAS: dict[str, F] = {
    "rerope": rerope,
    "rerope:window=5,leak=0.0625": leaky,
    "self-extend:window=6,group=4": self_extend,
    "dual-chunk": dual_chunk,
    "string-rope": string,
    "lm-infinite": lm_infinite,
    "streaming-llm": streaming_llm,
}


@pytest.mark.parametrize("scaling", ["", "scaling=yarn,factor=4,rotary=0.5"])
@pytest.mark.parametrize("spec", FORMULAS)
def test_formula(spec: str, scaling: str) -> None:
    encoding = make(f"{spec}{',' if ':' in spec else ':'}{scaling}" if scaling else spec)
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 1, 3 * L0, HEAD_DIM, generator=generator).double()
    theta = torch.zeros(HEAD_DIM // 2)
    theta[: encoding.planes] = encoding.frequencies(q.device)
    gain = torch.ones(HEAD_DIM // 2).double()
    gain[: encoding.planes] = encoding.scaling.gain(L0)
    first, second = q.chunk(2, -1), k.chunk(2, -1)
    planes = torch.complex(*first).conj()[0, 0], torch.complex(*second)[0, 0]
    expected = torch.full((3 * L0, 3 * L0), -torch.inf).double()
    for i in range(3 * L0):
        for j in range(i + 1):
            f = FORMULAS[spec](i, j)
            if f is not None:  # a query at f, a key at 0
                turn = torch.polar(gain.square(), -f * theta.double())
                expected[i, j] = (planes[0][i] * planes[1][j] * turn).real.sum()
    q, k, positions = turned(encoding, q, k)
    logits = attention_logits(q, k, hooks.logit_terms(encoding, positions, 1))
    torch.testing.assert_close(logits[0, 0], expected / math.sqrt(HEAD_DIM), rtol=0, atol=1e-12)


# Number of tokens with exactly the logits of RoPE.
UNCHANGED = {
    "rerope": 5,
    "self-extend": 4,
    "dual-chunk": 13,
    "string-rope": 5,
    "lm-infinite": 17,
    "streaming-llm": 16,
}


def decoder(spec: str) -> Decoder:
    torch.manual_seed(0)
    shape = ModelConfig(layers=2, heads=2, width=16, mlp_width=16, init_std=0.3, train_length=L0)
    return Decoder(shape, plugins.load("encoding", spec).make)


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_short_sequences_are_those_of_rope(name: str) -> None:
    tokens = torch.arange(40, 40 + UNCHANGED[name] + 6)[None]
    expected = decoder("rope").eval()(tokens, backend="eager")
    logits = decoder(name).eval()(tokens, backend="eager")
    same = (logits == expected).all(-1)[0]
    assert same[: UNCHANGED[name]].all() and not same[-1]


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_training_is_that_of_rope(name: str) -> None:
    tokens = torch.arange(40, 40 + 2 * L0)[None]
    rope, model = decoder("rope"), decoder(name)
    model.load_state_dict(rope.state_dict())  # the same names
    assert torch.equal(model(tokens), rope(tokens))
    remapped = decoder(f"{name}:train_remapped=true")
    assert torch.equal(remapped(tokens), model.eval()(tokens))
    assert not torch.allclose(model(tokens), rope(tokens), atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_keys_that_change_are_rotated_once(name: str) -> None:
    """In evaluation, for all blocks of queries; the other remaps change no key, or a few."""
    encoding = make(name)
    k = torch.randn(1, 2, 40, HEAD_DIM, generator=torch.Generator().manual_seed(0))
    prepared = hooks.prepare_product(encoding, k, in_order(40, k.device)).prepared
    assert (prepared is not None) == (name in ("dual-chunk", "rerope", "self-extend"))
    if prepared is not None:
        block = in_order(40, k.device).part(torch.arange(32, 40), slice(0, 40))
        q = k[:, :, 32:]
        kept = replace(block, prepared=prepared)
        scores = q @ k.mT
        logits = [encoding.rewrite_logits(scores, q, k, each) for each in (block, kept)]
        assert torch.equal(*logits)
    assert hooks.prepare_product(encoding.train(), k, in_order(40, k.device)).prepared is None


@torch.no_grad()
def test_logarithm_of_the_number_of_keys() -> None:
    """It applies beyond the training length, and counts keys rather than ids."""
    q, k = torch.randn(2, 1, 2, 40, HEAD_DIM, generator=torch.Generator().manual_seed(0)).double()
    ids = 1000 + torch.arange(40)[None]
    logits = []
    for spec in ("rerope", "rerope:log_n=true"):
        encoding = make(spec)
        positions = Positions(ids, ids)
        turned_q, turned_k = encoding.transform_qk(q, k, positions)
        logits.append(
            attention_logits(turned_q, turned_k, hooks.logit_terms(encoding, positions, 1))
        )
    plain, grown = logits
    assert torch.equal(grown[:, :, :L0], plain[:, :, :L0])
    seen = plain[0, 0, -1].isfinite()
    expected = plain[0, 0, -1][seen] * math.log(40) / math.log(L0)
    torch.testing.assert_close(grown[0, 0, -1][seen], expected, rtol=1e-6, atol=0)


@torch.no_grad()
@pytest.mark.parametrize("factor", [None, 4.0])
def test_drope_scales_queries_in_evaluation(factor: float | None) -> None:
    q = torch.randn(1, 2, 40, HEAD_DIM, generator=torch.Generator().manual_seed(0)).double()
    encoding = DroPE(SHAPE, factor=factor)
    positions = in_order(40, q.device)
    assert encoding.temperature(positions) is None
    factors = encoding.eval().temperature(positions)
    assert factors is not None
    scaled = q * factors[..., None]
    s = torch.tensor([factor or max(1.0, n / L0) for n in range(1, 41)]).double()
    expected = q * (1 + 0.412 * s.log())[:, None]
    torch.testing.assert_close(scaled, expected, rtol=1e-6, atol=0)
    if factor is None:
        assert torch.equal(scaled[:, :, :L0], q[:, :, :L0])
