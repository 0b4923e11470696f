"""`pe-bench check`: a table of what encodings keep and what they cost."""

from collections.abc import Sequence

from pe_bench.checks.costs import SHAPE, measure_costs
from pe_bench.checks.encodings import CHECKS, Subject, examine
from pe_bench.registry import plugins

COSTS = ("parameters", "extra FLOPs", "extra cache")


def check_encodings(specs: Sequence[str], device: str = "cpu") -> bool:
    """Runs every check on every encoding and prints a table; True if all hold.

    Raises:
        InputError: an encoding that cannot be loaded or built.
    """
    loaded = [plugins.load("encoding", spec) for spec in specs]
    subjects = {p.label: Subject(p.make, device) for p in loaded}
    for subject in subjects.values():
        subject.model()  # what cannot be built is said before the first line
    width = max(map(len, subjects))
    print(" " * width, *CHECKS, *COSTS)
    failures = []
    for label, subject in subjects.items():
        findings = examine(subject)
        cells = [findings[name].status.ljust(len(name)) for name in CHECKS]
        costs = [cell.rjust(len(name)) for cell, name in zip(_costs(subject), COSTS, strict=True)]
        print(label.ljust(width), *cells, *costs, flush=True)
        failures += [f"{label}: {n}: {f.reason}" for n, f in findings.items() if f.bad]
    print(
        f"\n-: not claimed, or does not apply. Costs are per token, beyond a decoder without "
        f"positions\n({SHAPE.layers} layers, {SHAPE.heads} heads, width {SHAPE.width}, "
        f"{SHAPE.train_length} tokens)."
    )
    for line in failures:
        print(line)
    return not failures


def _costs(subject: Subject) -> tuple[str, str, str]:
    try:
        costs = measure_costs(subject.make_encoding)
    except Exception:  # what is wrong is among the findings
        return ("?",) * 3
    share = costs.flops / costs.bare_flops
    cache = "-" if costs.cache is None else f"{costs.cache / costs.bare_cache:+.1%}"
    return f"{costs.parameters:,}", f"{share:+.2%}", cache
