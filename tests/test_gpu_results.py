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


def test_the_efficiency_of_tape() -> None:
    (found,) = re.findall(
        r"On one \[H200\].*?With `torch.compile`.*?\. ", read("docs/tape.md") + " "
    )
    quoted = re.findall(r"([\d.]+) times (?:as long )?with `(\w+)`", found)
    assert [name for _, name in quoted] == ["tape", "t5", "fire", "tape", "t5"]
    for number, name in quoted[:3]:
        assert agrees(number, measured("training", name)), name
    for name, row in (("tape", "tape"), ("rope", "rope, bf16")):
        (memory,) = re.findall(rf"([\d.]+ GiB) with `{name}`", found)
        assert found_text("training", row).endswith(f" {memory}")
    decoding = re.findall(r"Decoding takes ([\d.]+) .*? and ([\d.]+) times with `t5`", found)
    for name, number in zip(("tape", "t5"), *decoding, strict=True):
        assert agrees(number, measured("decoding", f"{name}, x rope"))
    compiled = re.findall(r"step of `(\w+)` (?:takes )?([\d.]+) times", found)
    assert [name for name, _ in compiled] == ["tape", "rope"]
    for name, number in compiled:
        assert agrees(number, measured("compiled", f"{name}: compiled step, x plain"))


def test_attention_alone() -> None:
    (found,) = re.findall(
        r"Attention alone \(one layer of 12 heads.*?as long\.", read("docs/tape.md")
    )
    quoted = re.findall(r"([\d.]+)(?: and ([\d.]+))? times", found)
    (forward, _), (both, _), of_table = quoted
    (flex,) = re.findall(r"with FlexAttention: ([\d. and]+)\)", found)
    assert flex == found_text("attention", "TAPE, flex")
    assert f"{forward} and {both}" == found_text("attention", "TAPE, sdpa")
    assert " and ".join(of_table) == found_text("attention", "distance table, flex")
    # The verdict names which is slower, in training, decoding and attention alone.
    assert measured("training", "tape") > measured("training", "t5")
    assert measured("decoding", "tape, x rope") > measured("decoding", "t5, x rope")
    assert max(float(forward), float(both)) < min(map(float, of_table))


@pytest.mark.parametrize("name", ["rope", "tape"])
def test_compiled_steps(name: str) -> None:
    text = read("benchmarks/README.md")
    found = re.search(r"takes ([\d.]+) of the time for `rope` and ([\d.]+) for `tape`", text)
    assert found
    quoted = found[1 if name == "rope" else 2]
    assert agrees(quoted, measured("compiled", f"{name}: compiled step, x plain"))
