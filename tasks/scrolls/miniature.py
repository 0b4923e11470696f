"""A built-in miniature of a seven-part long-document benchmark, for use without a download.

Each part has the record layout and the kind of answer of the part it stands for (Shaham et al.
2022, arXiv:2201.03533), in a language small enough for a byte-level model to learn in minutes. A
document is a pile of facts of one form, "Ada hid the lantern in the barn."; only the name and the
thing tell the one that is asked for from the others, so retrieval decides and not a prior.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from pe_bench.api import InputError

Row = dict[str, str]
LENGTHS = (300, 4000)
SPLITS = ("train", "validation")

# Within a vocabulary the initials differ: the first byte of a word settles the rest.
_NAMES = "Ada, Ben, Cleo, Dan, Eve, Finn, Gus, Hana, Ivo, Jill, Kai, Lena"
_OBJECTS = "lantern, kettle, ring, mirror, basket, saw, drum, hammer, violin, clock, apron, jar"
_PLACES = "barn, cellar, garden, tower, mill, oven, well, harbour"


@dataclass(frozen=True)
class _Case:
    """A query on the fact {a} {b} {c}, a wrong value {w}, an unstated pair {x} {y}, {options}."""

    query: str
    outputs: tuple[str, ...]  # the references
    value: str = ""  # forces {c}, where the answer depends on it


@dataclass(frozen=True)
class _Style:
    """A genre: facts are a name {a}, one of the things {b} and one of the values {c}."""

    headings: tuple[str, ...]
    fact: str
    aside: str
    things: str
    values: str
    cases: tuple[_Case, ...]
    joiner: str = " "
    asked: str = ""  # where there is no query: the wording that marks the two facts to sum up


_STYLES = {
    "paper question": _Style(
        headings=("Paper {number}\nIntroduction", "Method", "Results"),
        fact="The {a} model uses {c} on {b} data.",
        aside="We thank {a} for advice.",
        things="news, law, chess, music, sport, film, opera, trade, radio, garden, ice, jazz",
        values="dropout, pooling, caching, voting, hashing, masking, sorting, tagging",
        cases=(
            *[_Case("What does the {a} model use on {b} data?", ("{c}",))] * 3,
            _Case("Does the {a} model use {c} on {b} data?", ("Yes",)),
            _Case("Does the {a} model use {w} on {b} data?", ("No",)),
            _Case("What does the {x} model use on {y} data?", ("Unanswerable",)),
        ),
    ),
    "inference": _Style(
        headings=("AGREEMENT No. {number}\nThe parties agree as follows.",),
        fact="{a} {c} disclose the {b}.",
        aside="{a} signs in good faith.",
        things="plans, notes, maps, deeds, songs, codes, terms, files, logs, ideas, books, rules",
        values="shall, shall not",
        cases=(
            _Case("{a} shall disclose the {b}.", ("Entailment",), value="shall"),
            _Case("{a} shall disclose the {b}.", ("Contradiction",), value="shall not"),
            _Case("{x} shall disclose the {y}.", ("Not mentioned",)),
        ),
        joiner="\n",
    ),
    "story question": _Style(
        headings=("THE VALLEY, BOOK {number}\n\nCHAPTER I", "CHAPTER II"),
        fact="{a} hid the {b} in the {c}.",
        aside="{a} could not sleep.",
        things=_OBJECTS,
        values=_PLACES,
        cases=(_Case("Where did {a} hide the {b}?", ("in the {c}", "the {c}")),),
    ),
    "multiple choice": _Style(
        headings=("The Market, Part {number}",),
        fact="{a} sold the {b} to the {c}.",
        aside="{a} laughed.",
        things=_OBJECTS,
        values="baker, smith, miller, tailor, doctor, farmer, judge, nurse",
        cases=(_Case("To whom did {a} sell the {b}?\n\n{options}", ("the {c}",)),),
    ),
    "meeting query": _Style(
        headings=("Chair: Welcome to meeting {number}.",),
        fact="{a}: I choose {c} for the {b}.",
        aside="{a}: Um, okay.",
        things="antenna, button, cover, dial, engine, frame, gear, handle, knob, lamp, motor, plug",
        values="red, blue, green, white, yellow, orange, pink, silver",
        cases=(_Case("Summarize what {a} decided on the {b}.", ("{a} chose {c} for the {b}.",)),),
        joiner="\n",
    ),
    "screenplay": _Style(
        headings=("Episode {number}\nSCENE ONE", "SCENE TWO"),
        fact="{a}: I lost the {b} in the {c}.",
        asked="[{a} finds the {b} in the {c}.]",
        aside="{a}: Are you sure?",
        things=_OBJECTS,
        values=_PLACES,
        cases=(_Case("", ("{a} finds the {b} in the {c}.",)),),
        joiner="\n",
    ),
    "report": _Style(
        headings=("Report {number}\nBackground", "Discussion"),
        fact="{a} County asked for {c} million for {b}.",
        asked="We found that {a} County spent {c} million on {b}.",
        aside="{a} County agreed.",
        things="roads, banks, schools, parks, trams, canals, dams, lakes, wells, farms, mines, art",
        values="2, 3, 4, 5, 6, 7, 8, 9",
        cases=(_Case("", ("{a} County spent {c} million on {b}.",)),),
    ),
}

STYLES: tuple[str, ...] = tuple(_STYLES)


def rows(style: str, split: str, n: int, *, seed: int = 0, length: int = 480) -> list[Row]:
    """Generates `n` examples of one style, the same on every platform and Python.

    Args:
        style: one of `STYLES`.
        split: one of `SPLITS`; they share no document, whatever the seeds.
        n: number of examples, each with its own document; a larger `n` only appends.
        seed: which documents.
        length: characters of query and document together, kept within 15 %; see `LENGTHS`.

    Returns:
        Records of `id`, `pid`, `input` and `output`, one for each reference: those of one example
        share its `id`, so a style with two references returns 2 * `n`.

    Raises:
        InputError: an argument is out of its range.
    """
    if style not in STYLES:
        raise InputError(f"unknown style {style!r}; choose one of: {', '.join(STYLES)}.")
    if split not in SPLITS:
        raise InputError(f"unknown split {split!r}; choose one of: {', '.join(SPLITS)}.")
    if n < 1:
        raise InputError(f"n={n} asks for no example; give 1 or more.")
    if not LENGTHS[0] <= length <= LENGTHS[1]:
        raise InputError(f"length={length} is not in {LENGTHS[0]} to {LENGTHS[1]} characters.")
    records = []
    for index in range(n):
        name = f"{style.replace(' ', '-')}-{split}-{seed}-{index}"
        number = 2 * index + SPLITS.index(split)  # odd or even, which keeps the splits apart
        text, outputs = _example(_STYLES[style], random.Random(name), number, length)
        for i, output in enumerate(outputs):
            records.append({"id": name, "pid": f"{name}_{i}", "input": text, "output": output})
    return records


def _example(style: _Style, rng: random.Random, number: int, length: int) -> tuple[str, list[str]]:
    """The input and its references."""
    case = style.cases[number // 2 % len(style.cases)]  # in turn, so that the classes balance
    names, things = _shuffled(rng, _NAMES.split(", ")), _shuffled(rng, style.things.split(", "))
    values = style.values.split(", ")
    # A Latin square: the name or the thing alone identifies a fact until the document gets long.
    facts = [
        {"a": name, "b": things[(i + lap) % len(things)], "c": _shuffled(rng, values)[0]}
        for lap in range(len(things))
        for i, name in enumerate(names)
    ]
    unstated = facts.pop()
    asked = facts[: 2 if style.asked else 1]
    asked[0]["c"] = value = case.value or asked[0]["c"]
    wrong = _shuffled(rng, [other for other in values if other != value])
    choices = zip("ABCD", _shuffled(rng, [value, *wrong[:3]]), strict=False)
    options = "\n".join(f" ({letter}) the {choice}" for letter, choice in choices)
    extra = {"w": wrong[0], "x": unstated["a"], "y": unstated["b"], "options": options}
    query = case.query.format(**asked[0], **extra)
    headings = [heading.format(number=number) for heading in style.headings]

    room = length - len(query) - sum(len(heading) + 2 for heading in headings)
    told = style.asked or style.fact
    lines = [told.format(**fact) for fact in asked]
    for fact in facts[len(asked) :]:
        line = (style.fact if rng.random() < 0.8 else style.aside).format(**fact)
        if sum(len(other) + 1 for other in lines) + len(line) / 2 > room:
            break
        lines.append(line)
    lines = _shuffled(rng, lines)
    per_section = -(-len(lines) // len(headings))
    sections = [lines[i * per_section :][:per_section] for i in range(len(headings))]
    parts = [f"{h}\n{style.joiner.join(s)}" for h, s in zip(headings, sections, strict=True)]
    asked.sort(key=lambda fact: lines.index(told.format(**fact)))
    outputs = [" ".join(output.format(**fact) for fact in asked) for output in case.outputs]
    return "\n\n".join([query, *parts] if query else parts), outputs


def _shuffled(rng: random.Random, items: Sequence[str]) -> list[str]:
    """A shuffled copy, built on the one method that Python promises to keep: `random()`."""
    return sorted(items, key=lambda _: rng.random())
