"""The figures for GPUs in the documentation agree with `results/gpu`."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def found_text(part: str, what: str) -> str:
    parts = json.loads((ROOT / "results/gpu/gpu.json").read_text())
    (found,) = [row["found"] for row in parts[part]["rows"] if row["what"] == what]
    return str(found)


def measured(part: str, what: str) -> float:
    return float(re.match(r"[\d.]+", found_text(part, what))[0])  # type: ignore[index]


def read(page: str) -> str:
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


def agrees(quoted: str, found: float) -> bool:
    """Return whether a quoted number is the measured one, rounded to the same digits."""
    return float(quoted) == round(found, len(quoted.partition(".")[2]))


def test_steps_after_the_changes() -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    (names,) = re.findall(r"^\| \| (`t5`.*) \|$", text, re.MULTILINE)
    (numbers,) = re.findall(r"^\| after \| (.*) \|$", text, re.MULTILINE)
    for name, number in zip(names.split(" | "), numbers.split(" | "), strict=True):
        assert agrees(number, measured("training", name.strip("`"))), name


def test_the_findings_on_a_gpu() -> None:
    found = re.search(r"\*\*On a GPU\.\*\*.*?takes (.*?)\. \*\*", read("docs/findings.md"))
    assert found
    quoted = re.findall(r"([\d.]+) times (?:as long )?with `(\w+)`", found[1])
    assert [name for _, name in quoted] == ["tape", "t5", "fire", "path", "cope", "tape"]
    *steps, (decoding, _) = quoted
    assert agrees(decoding, measured("decoding", "tape, x rope"))
    for number, name in steps:
        assert agrees(number, measured("training", name)), name


def cells_of(row: str) -> list[str]:
    """Return the numbers in a row of a table of docs/tape.md, which begins with `row`."""
    text = (ROOT / "docs" / "tape.md").read_text(encoding="utf-8")
    text = text[text.index("On one [H200]") :]
    (line,) = re.findall(rf"^\| {row} +\|(.*)\|$", text, re.MULTILINE)
    return [cell.strip() for cell in line.split("|")]


def test_the_efficiency_of_tape() -> None:
    names = ["tape", "t5", "fire"]
    assert cells_of("on a GPU") == names
    for number, name in zip(cells_of("training step, 1024 tokens"), names, strict=True):
        assert agrees(number, measured("training", name)), name
    *decoding, missing = cells_of("decoding")
    assert missing == "–"
    for number, name in zip(decoding, names[:2], strict=True):
        assert agrees(number, measured("decoding", f"{name}, x rope"))
    text = read("docs/tape.md")
    (memory,) = re.findall(r"uses ([\d.]+ GiB) with `tape` and ([\d.]+ GiB) with `rope`", text)
    for used, row in zip(memory, ("tape", "rope, bf16"), strict=True):
        assert found_text("training", row).endswith(f" {used}")
    (compiled,) = re.findall(
        r"a step of `tape` takes ([\d.]+) times .*? and a step of `rope` ([\d.]+) times", text
    )
    for number, name in zip(compiled, ("tape", "rope"), strict=True):
        assert agrees(number, measured("compiled", f"{name}: compiled step, x plain"))


def test_attention_alone() -> None:
    forward = cells_of("forward")
    both = cells_of("forward and backward")
    for index, row in enumerate(["TAPE, sdpa", "TAPE, flex", "distance table, flex"]):
        assert f"{forward[index]} and {both[index]}" == found_text("attention", row)
    # The verdict names which is slower, in training, decoding and attention alone.
    assert measured("training", "tape") > measured("training", "t5")
    assert measured("decoding", "tape, x rope") > measured("decoding", "t5, x rope")
    assert max(float(forward[0]), float(both[0])) < min(float(forward[2]), float(both[2]))


@pytest.mark.parametrize("name", ["rope", "tape"])
def test_compiled_steps(name: str) -> None:
    text = read("benchmarks/README.md")
    found = re.search(r"takes ([\d.]+) of the time for `rope` and ([\d.]+) for `tape`", text)
    assert found
    quoted = found[1 if name == "rope" else 2]
    assert agrees(quoted, measured("compiled", f"{name}: compiled step, x plain"))
