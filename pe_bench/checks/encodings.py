"""What every encoding must satisfy, written once: `pe-bench check NAME` and the tests run this.

A check takes a `Subject` and returns None if it holds, a sentence if it does not, and raises
`NotApplicable` where the encoding does not claim what is checked.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pe_bench.config import ModelConfig
from pe_bench.decoder.cache import Cache
from pe_bench.decoder.generation import generate
from pe_bench.decoder.model import Decoder, MakeEncoding
from pe_bench.encoding import StatefulEncoding
from pe_bench.errors import InputError
from pe_bench.positions import Positions

LENGTH = 40
TRAIN_LENGTH = 32
# Larger weights than a real model's: attention must be far from uniform for positions to matter.
CONFIG = ModelConfig(
    layers=3,
    heads=4,
    width=64,
    mlp_width=96,
    init_std=0.15,
    vocab_size=64,
    train_length=TRAIN_LENGTH,
    digit_ids=tuple(range(10)),
    separator_ids=(10, 11, 12, 13),
)


class NotApplicable(Exception):
    """The encoding does not claim what is checked; the message says what it does not."""


@dataclass(frozen=True)
class Subject:
    """An encoding under test: how to make one, and where to run it."""

    make_encoding: MakeEncoding
    device: str = "cpu"

    def model(self, dtype: torch.dtype = torch.float64) -> Decoder:
        """A small decoder without zero weights, the same on every call, in evaluation mode."""
        torch.manual_seed(0)
        model = Decoder(CONFIG, self.make_encoding)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        return model.to(self.device, dtype).eval()

    def tokens(self, length: int = LENGTH, rows: int = 2) -> Tensor:
        """Random tokens, the same on every call."""
        generator, length = torch.Generator().manual_seed(1), self.length(length)
        return torch.randint(CONFIG.vocab_size, (rows, length), generator=generator).to(self.device)

    def length(self, wanted: int) -> int:
        """The wanted length, or as much of it as the encoding has positions for."""
        limit = self.model().encoding.max_position
        return wanted if limit is None else min(wanted, limit)


@torch.no_grad()
def causal(subject: Subject) -> str | None:
    """No output depends on later tokens."""
    model, tokens = subject.model(), subject.tokens()
    changed = tokens.clone()
    changed[:, 25:] = (changed[:, 25:] + 7) % CONFIG.vocab_size
    return _differ(model(changed)[:, :25], model(tokens)[:, :25], "changing later tokens")


@torch.no_grad()
def prefix_consistent(subject: Subject) -> str | None:
    """Outputs do not depend on how many tokens follow, where so declared."""
    model, tokens = subject.model(), subject.tokens()
    if not model.encoding.prefix_consistent:
        raise NotApplicable("declares prefix_consistent = False")
    return _differ(model(tokens[:, :17]), model(tokens)[:, :17], "cutting the sequence")


@torch.no_grad()
def shift_invariant(subject: Subject) -> str | None:
    """Outputs stay the same when all position ids grow, where so declared."""
    model, tokens = subject.model(), subject.tokens()
    if not model.encoding.shift_invariant:
        raise NotApplicable("declares shift_invariant = False")
    ids, limit = torch.arange(tokens.shape[1], device=subject.device)[None], 1000
    if model.encoding.max_position is not None:
        limit = min(limit, model.encoding.max_position - tokens.shape[1])
    plain, moved = (model(tokens, positions=i) for i in (ids, ids + limit))
    return _differ(moved, plain, "shifting the positions")


@torch.no_grad()
def cache(subject: Subject) -> str | None:
    """Decoding token by token gives the logits of a full forward."""
    model, tokens = _cacheable(subject), subject.tokens()
    memory = Cache(len(tokens), LENGTH, subject.device)
    steps = [tokens[:, :25], *tokens[:, 25:].split(1, dim=1)]
    decoded = torch.cat([model(step, memory) for step in steps], dim=1)
    return _differ(decoded, model(tokens), "decoding with a cache")


@torch.no_grad()
def chunks(subject: Subject) -> str | None:
    """Feeding a prompt in pieces gives the logits of a full forward."""
    model, tokens = _cacheable(subject), subject.tokens()
    memory = Cache(len(tokens), LENGTH, subject.device)
    pieces = torch.cat([model(piece, memory) for piece in tokens.split(13, dim=1)], dim=1)
    return _differ(pieces, model(tokens), "feeding the prompt in pieces")


def ragged(subject: Subject) -> str | None:
    """Prompts of unequal length in one batch continue as each does alone."""
    model, tokens = _cacheable(subject), subject.tokens(20, rows=3).tolist()
    prompts = [tokens[0], tokens[1][:5], tokens[2][:13]]
    together = generate(model, prompts, max_new_tokens=12, end=-1)
    for i, prompt in enumerate(prompts):
        row = list(prompt)
        for _ in range(12):
            with torch.no_grad():
                row.append(int(model(torch.tensor([row], device=subject.device))[0, -1].argmax()))
        if row[len(prompt) :] != together[i]:
            return f"a prompt of {len(prompt)} tokens continues differently among longer ones"
    return None


def sdpa(subject: Subject) -> str | None:
    """The fused path gives the eager path's outputs and gradients."""
    model, tokens = subject.model(), subject.tokens()
    if model.encoding.overrides("rewrite_logits"):
        raise NotApplicable("rewrites logits, which has the eager path only")
    outputs, gradients = [], []
    for backend in ("eager", "sdpa"):
        model.zero_grad()
        out = model(tokens, backend=backend)
        out.square().mean().backward()
        outputs.append(out.detach())
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    if wrong := _differ(outputs[1], outputs[0], "the fused path"):
        return wrong
    pairs = zip(gradients[1], gradients[0], strict=True)
    return next((w for a, b in pairs if (w := _differ(a, b, "the fused path's gradient"))), None)


def gradients(subject: Subject) -> str | None:
    """Every parameter gets a gradient."""
    model = subject.model().train()
    model(subject.tokens(subject.length(2 * LENGTH))).square().mean().backward()
    without = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and (parameter.grad is None or not parameter.grad.any())
    ]
    return f"no gradient reaches {', '.join(without)}" if without else None


@torch.no_grad()
def bfloat16(subject: Subject) -> str | None:
    """A model in bfloat16 keeps far positions as well apart as near ones."""
    narrow = subject.model(torch.float32).bfloat16()
    wide = subject.model(torch.float32)
    wide.load_state_dict(narrow.state_dict())  # the same rounded weights
    tokens, span = subject.tokens(64), subject.length(8192)
    length = tokens.shape[1]
    near = torch.arange(length, device=subject.device)[None]
    errors = []
    for ids in (near, near + span - length, near * (span // length)):
        expected = wide(tokens, positions=ids).double()
        error = (narrow(tokens, positions=ids).double() - expected).square().mean().sqrt()
        errors.append(float(error / expected.square().mean().sqrt()))
    if not all(error <= 2 * errors[0] + 0.01 for error in errors[1:]):  # also if not a number
        return (
            f"relative error {errors[0]:.3f} near position 0 but {errors[1]:.3f} near {span} "
            f"and {errors[2]:.3f} spread over all"
        )
    return None


@torch.no_grad()
def finite(subject: Subject) -> str | None:
    """Outputs are finite at 8 times the training length and at random increasing ids."""
    model = subject.model(torch.float32)
    span = subject.length(8 * TRAIN_LENGTH)
    for backend in ("eager", "auto"):  # a fused kernel may hide what overflows
        if not model(subject.tokens(span), backend=backend).isfinite().all():
            return f"not finite at length {span}"
    generator = torch.Generator().manual_seed(2)
    span = subject.length(2048)
    ids = torch.randperm(span, generator=generator)[:LENGTH].sort().values[None]
    tokens = subject.tokens(ids.shape[1])
    if not model(tokens, positions=ids.to(subject.device)).isfinite().all():
        return "not finite at random increasing position ids"
    return None


@torch.no_grad()
def max_position(subject: Subject) -> str | None:
    """A position past the declared table is refused with a sentence."""
    model = subject.model()
    limit = model.encoding.max_position
    if limit is None:
        raise NotApplicable("has no table of positions")
    ids = torch.tensor([[limit - 1, limit]], device=subject.device)
    model(subject.tokens(2), positions=ids - 1)
    try:
        model(subject.tokens(2), positions=ids)
    except InputError:
        return None
    return f"position {limit} is accepted although there are {limit}"


@torch.no_grad()
def permutation(subject: Subject) -> str | None:
    """Permuting the tokens that `update_state` is given permutes the states that it returns."""
    model, tokens = subject.model(), subject.tokens()
    encoding, given = model.encoding, []
    if not (isinstance(encoding, StatefulEncoding) and encoding.overrides("update_state")):
        raise NotApplicable("hands its state on as it is")
    if not encoding.permutation_equivariant:
        raise NotApplicable("declares permutation_equivariant = False")
    update = encoding.update_state

    def watch(*args: Any) -> Any:
        given.append((args, update(*args)))
        return given[-1][1]

    encoding.update_state = watch  # type: ignore[method-assign, assignment]
    model(tokens)
    order = torch.randperm(tokens.shape[1], generator=torch.Generator().manual_seed(3))
    args, expected = given[0]
    actual = update(*_map_tensors(args, lambda t: t[..., order, :]))
    expected = _map_tensors(expected, lambda t: t[..., order, :])
    pairs = zip(_tensors(actual), _tensors(expected), strict=True)
    return next((w for a, b in pairs if (w := _differ(a, b, "the order of the tokens"))), None)


@torch.no_grad()
def rotation(subject: Subject) -> str | None:
    """Rotating the feature planes of all states alike changes nothing, where so declared."""
    model, tokens = subject.model(), subject.tokens()
    encoding = model.encoding
    if not (isinstance(encoding, StatefulEncoding) and encoding.rotation_equivariant):
        raise NotApplicable("does not declare rotation_equivariant = True")
    expected = model(tokens)
    prepare = encoding.prepare
    seen: list[tuple[Tensor, Tensor]] = []
    angles = torch.linspace(0.5, 3.0, CONFIG.head_dim // 2, dtype=expected.dtype)
    angles = angles.to(subject.device)

    def rotated(x: Tensor, positions: Positions) -> Any:
        before = prepare(x, positions)
        after = encoding.rotate_state(before, angles)
        seen.extend(zip(_tensors(before), _tensors(after), strict=True))
        return after

    encoding.prepare = rotated  # type: ignore[method-assign]
    actual = model(tokens)
    encoding.prepare = prepare  # type: ignore[method-assign]
    if all(torch.equal(before, after) for before, after in seen):
        return "rotate_state does not change the state"
    return _differ(actual, expected, "rotating the states")


CHECKS: dict[str, Callable[[Subject], str | None]] = {
    check.__name__: check
    for check in (
        *(causal, prefix_consistent, shift_invariant, cache, chunks, ragged),
        *(sdpa, gradients, bfloat16, finite, max_position, permutation, rotation),
    )
}


@dataclass(frozen=True)
class Finding:
    """How one check ended.

    Attributes:
        status: "ok", "-" (does not apply), "FAIL" or "ERROR".
        reason: in one sentence, of all but "ok".
    """

    status: str
    reason: str = ""

    @property
    def bad(self) -> bool:
        """Whether the encoding breaks what it must keep."""
        return self.status in ("FAIL", "ERROR")


def examine(subject: Subject) -> dict[str, Finding]:
    """Runs every check; none can stop the others.

    Raises:
        InputError: the encoding cannot be built.
    """
    subject.model()  # options out of range are the caller's error, not a finding
    findings = {}
    for name, check in CHECKS.items():
        try:
            wrong = check(subject)
            findings[name] = Finding("FAIL", wrong) if wrong else Finding("ok")
        except NotApplicable as claim:
            findings[name] = Finding("-", str(claim))
        except Exception as error:  # a broken hook is a finding, not our crash
            findings[name] = Finding("ERROR", f"{type(error).__name__}: {error}")
    return findings


def _cacheable(subject: Subject) -> Decoder:
    model = subject.model()
    if not model.encoding.prefix_consistent:
        raise NotApplicable("needs prefix consistency, which it does not declare")
    return model


def _differ(actual: Tensor, expected: Tensor, what: str, tolerance: float = 1e-9) -> str | None:
    error = float((actual - expected).abs().max() / expected.abs().max().clamp(min=1e-30))
    return None if error <= tolerance else f"{what} changes it by {error:.1e} of the largest value"


def _map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A state with every tensor of it changed."""
    if isinstance(value, Tensor):
        return change(value)
    return tuple(_map_tensors(v, change) for v in value) if isinstance(value, tuple) else value


def _tensors(state: Any) -> list[Tensor]:
    found: list[Tensor] = []
    _map_tensors(state, lambda t: found.append(t) or t)  # type: ignore[func-returns-value]
    return found
