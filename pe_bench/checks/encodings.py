"""Properties that every encoding must have; `pe-bench check NAME` and the tests check them.

A check takes a `Subject`. It returns None if the property holds and a sentence if it does not. It
raises `NotApplicable` if the encoding does not claim the property. The first line of its docstring
is shown in the legend.
"""

from collections.abc import Callable

from pe_bench.checks.backends import backends, kernels
from pe_bench.checks.cached_decoding import cache, chunks, ragged
from pe_bench.checks.dependence import causal, prefix_consistent, rows, shift_invariant
from pe_bench.checks.far_positions import bfloat16, finite, max_position
from pe_bench.checks.findings import Finding, run_check
from pe_bench.checks.gradients import gradients
from pe_bench.checks.interface import interface
from pe_bench.checks.precision import precision
from pe_bench.checks.repeatability import repeatable
from pe_bench.checks.softmax import normalise, out_of_sight, temperature
from pe_bench.checks.states import permutation, rotation
from pe_bench.checks.subject import Subject
from pe_bench.encoding import Encoding

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
