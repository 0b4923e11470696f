"""Display names of encodings, for tables and figures of papers."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pe_bench.errors import InputError, suggest
from pe_bench.registry import catalogue
from pe_bench.registry.attributes import class_name
from pe_bench.reporting.styles import declared_attributes
from pe_bench.results.labels import ARROW, split_label
from pe_bench.results.record import RunRecord


def display_names(
    records: Iterable[RunRecord], replaced: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the display name of each encoding of some runs, by label.

    The name is the attribute `label` of the class, with the options of the spec in brackets. A
    shipped encoding without this attribute has the name of its class, another one its name in
    tables. If two encodings would have the same name, the label follows the name of both.

    Args:
        records: records of the runs.
        replaced: display names that replace others, by label.
    """
    found: dict[str, str] = {}
    for record in records:
        found.setdefault(record.encoding, display_name(record.encoding, record))
    found |= {label: name for label, name in (replaced or {}).items() if label in found}
    counts = Counter(found.values())
    return {
        label: f"{name} [{label}]" if counts[name] > 1 else name for label, name in found.items()
    }


def display_name(label: str, record: RunRecord | None = None) -> str:
    """Return the display name of a label; of an adapted model, that of the new encoding.

    Args:
        label: label of the encoding.
        record: record of one of its runs, for encodings that are not shipped.
    """
    name, _ = split_label(label)
    shown = declared_attributes(label, record).get("label") or ""
    if not shown:
        is_shipped = name in catalogue.names("encoding")
        shown = class_name("encoding", name) if is_shipped else name.removesuffix(".py")
    _, _, measured = label.rpartition(ARROW)
    options, bracket, method = measured[len(name) :].partition(" [")
    if options:
        shown += f" ({', '.join(options.removeprefix(':').split(','))})"
    return shown + bracket + method


def read_names(words: Sequence[str], labels: Sequence[str]) -> dict[str, str]:
    """Return display names given as "LABEL=NAME", by label.

    Args:
        words: the given texts. The last equals sign separates label and name.
        labels: labels that exist.

    Raises:
        InputError: a text has another form, or its label does not exist.
    """
    found: dict[str, str] = {}
    for word in words:
        label, sign, name = word.rpartition("=")
        if not sign or not name.strip() or not label:
            raise InputError(f"--label takes ENCODING=NAME, as in rope=RoPE, not '{word}'")
        if label not in labels:
            raise InputError(
                f"--label names the encoding '{label}'{suggest(label, list(labels))}, which is not "
                f"shown: there are {', '.join(labels)}"
            )
        found[label] = name.strip()
    return found
