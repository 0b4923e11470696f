"""The figures for GPUs in the documentation agree with `results/gpu`."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def measured(part: str, what: str) -> float:
    parts = json.loads((ROOT / "results/gpu/gpu.json").read_text())
    (found,) = [row["found"] for row in parts[part]["rows"] if row["what"] == what]
    return float(re.match(r"[\d.]+", found)[0])  # type: ignore[index]


@pytest.mark.parametrize("page", ["docs/running.md", "benchmarks/README.md"])
def test_slowest_encodings(page: str) -> None:
    text = (ROOT / page).read_text().replace("\n", " ")
    for name in ("t5", "fox", "fire"):
        pattern = rf"([\d.]+)(?: times)? with `{name}`|`{name}` \(([\d.]+)"
        ((one, other),) = re.findall(pattern, text)
        quoted = one or other
        assert float(quoted) == pytest.approx(measured("training", name), abs=0.5)


def test_a_step() -> None:
    text = (ROOT / "docs/running.md").read_text().replace("\n", " ")
    step = r"takes (\d+) ms with `rope` .*?, ([\d.]+) times as long with `tape`"
    found = re.search(rf"{step}, and ([\d.]+) times with `nope`", text)
    assert found
    assert int(found[1]) == round(measured("training", "rope, bf16"))
    assert float(found[2]) == measured("training", "tape")
    assert float(found[3]) == measured("training", "nope")


def test_compiled_steps() -> None:
    text = (ROOT / "benchmarks/README.md").read_text()
    found = re.search(r"takes ([\d.]+) of the time for `rope` and ([\d.]+) for `tape`", text)
    assert found
    for name, quoted in zip(("rope", "tape"), found.groups(), strict=True):
        assert float(quoted) == measured("compiled", f"{name}: compiled step, x plain")
