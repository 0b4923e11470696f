"""Properties that every encoding must have; `pe-bench check NAME` and the tests check them.

A check takes a `Subject`. It returns None if the property holds and a sentence if it does not. It
raises `NotApplicable` if the encoding does not claim the property. The first line of its docstring
is shown in the legend.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from pe_bench.checks.differences import difference, first_difference
from pe_bench.checks.findings import Finding, NotApplicable, run_check
from pe_bench.checks.interface import find_oversights
from pe_bench.checks.kernels import LENGTHS, compare_kernels
from pe_bench.checks.ledger import blocks_of
from pe_bench.checks.precision import precision
from pe_bench.checks.repeatability import repeatable
from pe_bench.checks.softmax import normalise, out_of_sight, temperature
from pe_bench.checks.states import permutation, rotation
from pe_bench.checks.subject import (
    CONFIG,
    LENGTH,
    TRAIN_LENGTH,
    Subject,
    layer_outputs,
    outputs_and_gradients,
    training_outputs,
)
from pe_bench.checks.trained import (
    describe_unchanged,
    find_unchanged_parameters,
    training_loss,
)
from pe_bench.decoder import blocked
from pe_bench.decoder.attention import BACKENDS, Backend
from pe_bench.decoder.cache import Cache
from pe_bench.decoder.generation import generate
from pe_bench.decoder.model import Decoder
from pe_bench.encoding import Encoding
from pe_bench.errors import InputError

FIRST_ORDINARY = 1 + max(*CONFIG.digit_ids, *CONFIG.separator_ids)  # above digits and separators
SMALL = 1e-3  # errors are relative to the gradient, or to this part of the largest gradient


def interface(subject: Subject) -> str | None:
    """No name is misspelt, some hook is overridden, and tensors are buffers."""
    return "; ".join(find_oversights(subject.make_encoding(subject.config, 0))) or None


@torch.no_grad()
def causal(subject: Subject) -> str | None:
    """No output depends on later tokens."""
    model = subject.model()
    for tokens in subject.short_and_long():
        changed, cut = _change_end(tokens)
        before = [outputs[:, :cut] for outputs in layer_outputs(model, tokens)]
        after = [outputs[:, :cut] for outputs in layer_outputs(model, changed)]
        what = _with_length("changing later tokens changes the outputs", tokens)
        wrong = first_difference(after, before, what, subject.tolerance)
        if wrong:
            return wrong
    trained = subject.trained_on_long()
    for text in subject.short_and_long():
        tokens = text[:, : trained.train_length]
        # In training, positions of digits may depend on the whole row.
        changed, cut = _change_end(tokens)
        changed = _with_digits_of(tokens, changed)
        before = [outputs[:, :cut] for outputs in training_outputs(trained.model(), tokens)]
        after = [outputs[:, :cut] for outputs in training_outputs(trained.model(), changed)]
        what = _with_length("in training, later tokens change the outputs", tokens)
        wrong = first_difference(after, before, what, subject.tolerance)
        if wrong:
            return wrong
    return None


@torch.no_grad()
def prefix_consistent(subject: Subject) -> str | None:
    """Outputs do not depend on the number of later tokens, if this is declared.

    With `needs_final_length`, both cases get the same length of the finished sequence.
    """
    model = subject.model()
    if not model.encoding.prefix_consistent:
        raise NotApplicable("declares prefix_consistent = False")
    for tokens in subject.short_and_long():
        finished = None
        if model.encoding.needs_final_length:
            finished = torch.full((len(tokens),), tokens.shape[1])
        what = _with_length("cutting the sequence changes the outputs", tokens)
        whole = model(tokens)
        for cut in (17, _middle(tokens)):
            start = model(tokens[:, :cut], final_lengths=finished)
            wrong = difference(start, whole[:, :cut], what, subject.tolerance)
            if wrong:
                return wrong
    return None


@torch.no_grad()
def rows(subject: Subject) -> str | None:
    """The outputs of a row do not depend on the other rows of its batch."""
    model = subject.model()
    for tokens in subject.short_and_long():
        alone = layer_outputs(model, tokens[:1])
        together = [outputs[:1] for outputs in layer_outputs(model, tokens)]
        what = _with_length("another row of a batch changes the outputs", tokens)
        wrong = first_difference(together, alone, what, subject.tolerance)
        if wrong:
            return wrong
    trained = subject.trained_on_long()
    for text in subject.short_and_long():
        tokens = text[:, : trained.train_length]
        # In training, random numbers may depend on the number of rows and on digits.
        others = torch.cat([tokens[:1], _with_digits_of(tokens[1:], tokens[1:].flip(1))])
        before = [outputs[:1] for outputs in training_outputs(trained.model(), tokens)]
        after = [outputs[:1] for outputs in training_outputs(trained.model(), others)]
        what = _with_length("in training, another row of a batch changes the outputs", tokens)
        wrong = first_difference(after, before, what, subject.tolerance)
        if wrong:
            return wrong
    return None


@torch.no_grad()
def shift_invariant(subject: Subject) -> str | None:
    """Outputs do not change when all position ids are shifted, if this is declared."""
    model = subject.model()
    tokens = subject.tokens()
    if not model.encoding.shift_invariant:
        raise NotApplicable("declares shift_invariant = False")
    ids = torch.arange(tokens.shape[1], device=subject.device)[None]
    shift = 1000
    if model.encoding.max_position is not None:
        shift = min(shift, model.encoding.max_position - tokens.shape[1])
    plain = model(tokens, positions=ids)
    shifted = model(tokens, positions=ids + shift)
    return difference(shifted, plain, f"shifting the positions by {shift} changes the outputs")


@torch.no_grad()
def cache(subject: Subject) -> str | None:
    """Decoding token by token gives the logits of a full forward."""
    model = _cacheable(subject)
    for tokens in subject.short_and_long():
        memory = Cache(len(tokens), tokens.shape[1], subject.device)
        decoded = torch.cat([model(step, memory) for step in _steps(tokens)], dim=1)
        what = _with_length("decoding with a cache changes the outputs", tokens)
        wrong = difference(decoded, model(tokens), what)
        if wrong:
            return wrong
    return None


@torch.no_grad()
def chunks(subject: Subject) -> str | None:
    """Feeding a prompt in pieces gives the logits of a full forward."""
    model = _cacheable(subject)
    for tokens in subject.short_and_long():
        memory = Cache(len(tokens), tokens.shape[1], subject.device)
        pieces = torch.cat([model(piece, memory) for piece in tokens.split(13, dim=1)], dim=1)
        what = _with_length("feeding the prompt in pieces changes the outputs", tokens)
        wrong = difference(pieces, model(tokens), what)
        if wrong:
            return wrong
    return None


def ragged(subject: Subject) -> str | None:
    """Prompts of unequal length in one batch continue as each does alone."""
    new_tokens = 6
    model = _cacheable(subject)
    for tokens in subject.short_and_long(rows=3):
        texts = tokens[:, :-new_tokens].tolist()
        prompts = [texts[0], texts[1][:5], texts[2][:-3]]
        together = generate(model, prompts, max_new_tokens=new_tokens, end=-1)
        for prompt, continued in zip(prompts, together, strict=True):
            row = torch.tensor([[*prompt, *continued]], device=subject.device)  # (1, T)
            with torch.no_grad():
                logits = model(row, final_lengths=torch.tensor([row.shape[1]]))  # (1, T, V)
            alone = logits[0, len(prompt) - 1 : -1].argmax(-1)
            if alone.tolist() != continued:
                return f"a prompt of {len(prompt)} tokens continues differently among longer ones"
    return None


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


def gradients(subject: Subject) -> str | None:
    """Every parameter gets a gradient, and training changes it from its initial value."""
    trained = subject.trained_on_long()
    tokens = trained.tokens(trained.longest)  # some parameters serve far distances only
    model = trained.model().train()
    training_loss(model, tokens).backward()
    without = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and (parameter.grad is None or not parameter.grad.any())
    ]
    if without:
        return f"no gradient reaches {', '.join(without)}"
    unchanged = find_unchanged_parameters(trained.untrained_model(), tokens)
    return describe_unchanged([f"encodings.{name}" for name in unchanged]) if unchanged else None


@torch.no_grad()
def bfloat16(subject: Subject) -> str | None:
    """In bfloat16, outputs at far positions are as precise as at near ones.

    The relative error against float32 may be at most twice the error near position 0, plus 0.01.
    With `logits_grow` it may grow with the logits.
    """
    narrow = subject.model(torch.float32).bfloat16()
    wide = subject.model(torch.float32)
    wide.load_state_dict(narrow.state_dict())  # the same rounded weights
    tokens = subject.tokens(64)
    length = tokens.shape[1]
    span = subject.length(8192)
    near = torch.arange(length, device=subject.device)[None]
    errors = []
    sizes = []
    for ids in (near, near + span - length, near * (span // length)):
        trace: list[Tensor] = []
        expected = wide.lm_head(wide.hidden(tokens, positions=ids, trace=trace)).double()
        error = (narrow(tokens, positions=ids).double() - expected).square().mean().sqrt()
        errors.append(float(error / expected.square().mean().sqrt()))
        sizes.append(_size(torch.stack(trace)))
    first, *far = errors
    growth = max(1.0, sizes[1] / sizes[0], sizes[2] / sizes[0])
    declared = wide.encoding.logits_grow
    bound = 2 * first * (growth if declared else 1.0) + 0.01
    if all(error <= bound for error in far):  # False if an error is NaN
        return None
    wrong = (
        f"relative error {first:.3f} near position 0, but {far[0]:.3f} near {span} and "
        f"{far[1]:.3f} over all positions; at most {bound:.3f} is expected"
    )
    if growth > 1.2 and not declared:
        wrong += (
            f"; far logits are {growth:.1f} times as large: if this is intended, "
            "set logits_grow = True"
        )
    return wrong


@torch.no_grad()
def finite(subject: Subject) -> str | None:
    """Outputs are finite at 8 times the training length and at random increasing ids."""
    model = subject.model(torch.float32)
    span = subject.length(8 * TRAIN_LENGTH)
    for backend in ("eager", "auto"):  # a fused kernel may hide an overflow
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
    """A position beyond the declared table is refused with a message."""
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


CHECKS: dict[str, Callable[[Subject], str | None]] = {
    "repeatable": repeatable,  # first, because a random encoding fails most other checks
    "causal": causal,
    "prefix_consistent": prefix_consistent,
    "rows": rows,
    "shift_invariant": shift_invariant,
    "cache": cache,
    "chunks": chunks,
    "ragged": ragged,
    "backends": backends,
    "kernels": kernels,
    "gradients": gradients,
    "precision": precision,
    "bfloat16": bfloat16,
    "finite": finite,
    "max_position": max_position,
    "out_of_sight": out_of_sight,
    "temperature": temperature,
    "normalise": normalise,
    "permutation": permutation,
    "rotation": rotation,
    "interface": interface,
}

# The class attribute that a check verifies, and the remedy if the check fails.
FACTS = {
    "prefix_consistent": (
        "prefix_consistent",
        "set prefix_consistent = False if outputs depend on the length by design",
    ),
    "shift_invariant": (
        "shift_invariant",
        "set shift_invariant = False if absolute positions matter by design",
    ),
    "max_position": ("max_position", "set max_position to the number of positions that exist"),
    "permutation": (
        "permutation_equivariant",
        "override update_state, or set permutation_equivariant = False",
    ),
    "rotation": (
        "rotation_equivariant",
        "override rotate_state, or set rotation_equivariant = False",
    ),
}


def examine(subject: Subject) -> dict[str, Finding]:
    """Run every check. An error in one check does not stop the others.

    Raises:
        InputError: the encoding cannot be built.
    """
    encoding = subject.model().encoding  # raises for options out of range
    findings: dict[str, Finding] = {}
    for name, check in CHECKS.items():
        if "repeatable" in findings and findings["repeatable"].status == "FAIL":
            findings[name] = Finding("-", "not run, because the check repeatable fails")
            continue
        finding = run_check(check, subject)
        if finding.status == "FAIL" and name in FACTS and not findings["repeatable"].bad:
            finding = Finding(finding.status, finding.reason + _inherited(encoding, *FACTS[name]))
        findings[name] = finding
    return findings


def _inherited(encoding: Encoding, fact: str, remedy: str) -> str:
    """Return the remedy for an attribute inherited from a parent class, "" if not inherited."""
    if fact in vars(encoding):  # set by its constructor
        return ""
    owner = next(cls for cls in type(encoding).__mro__ if fact in vars(cls))
    if owner is type(encoding):
        return ""
    return f"; {fact} is inherited from {owner.__name__}: {remedy}"


def _with_length(what: str, tokens: Tensor) -> str:
    """Return the words with the number of tokens, if these are a long text."""
    length = tokens.shape[1]
    return what if length <= LENGTH else f"with {length} tokens, {what}"


def _middle(tokens: Tensor) -> int:
    """Return a number of tokens in the middle; it is odd, so no chunk of 2^n tokens ends there."""
    return tokens.shape[1] * 5 // 8 | 1


def _change_end(tokens: Tensor) -> tuple[Tensor, int]:
    """Return tokens (B, T) of which the last ones are others, and the number of equal ones."""
    cut = _middle(tokens)
    changed = tokens.clone()
    changed[:, cut:] = (changed[:, cut:] + 7) % CONFIG.vocab_size
    return changed, cut


def _with_digits_of(tokens: Tensor, changed: Tensor) -> Tensor:
    """Return the changed tokens (B, T), but digits and separators as they were."""
    return torch.where(tokens < FIRST_ORDINARY, tokens, changed.clamp(FIRST_ORDINARY))


def _steps(tokens: Tensor) -> Sequence[Tensor]:
    """Divide tokens (B, T): one by one around powers of two, where tables may end, else together.

    A short text is a prompt of 30 tokens and ten single ones.
    """
    cuts: list[int] = []
    for bound in (35, 64, 128):
        cuts += range(bound - 5, min(bound + 6, tokens.shape[1]))
    return tokens.tensor_split(cuts, dim=1)


def _cacheable(subject: Subject) -> Decoder:
    model = subject.model()
    if not model.encoding.prefix_consistent:
        raise NotApplicable("needs prefix consistency, which it does not declare")
    return model


def _serving(model: Decoder, tokens: Tensor) -> Iterator[Backend]:
    """Yield the backends that can train the encoding, except the reference formula."""
    for backend in BACKENDS:
        try:
            model.hidden(tokens[:, :2], backend=backend)
        except InputError:
            continue
        if backend != "eager":
            yield backend


def _size(logits: Tensor) -> float:
    """Return the root mean square of the attention logits at unmasked keys."""
    return float(logits[logits.isfinite()].double().square().mean().sqrt())
