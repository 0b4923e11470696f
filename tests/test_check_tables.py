"""The tables of `pe-bench check`, line by line, with given findings."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pe_bench.checks import encodings, table, tasks
from pe_bench.checks.costs import Costs
from pe_bench.checks.findings import Finding
from pe_bench.checks.shortcuts import ShortcutScore
from pe_bench.checks.subject import CONFIG, Subject
from pe_bench.checks.task_subject import TaskSubject
from pe_bench.config import ModelConfig

NAN = float("nan")


def first(_: Any) -> None:
    """The first property."""


def second(_: Any) -> None:
    """The second property, with a name that takes more than a line of eighty columns: all of it."""


CHECKS: dict[str, Callable[[Any], None]] = {"first": first, "second": second, "third": first}
GOOD = {"first": Finding("ok"), "second": Finding("-", "is not claimed"), "third": Finding("ok")}
WRONG = {
    "first": Finding("FAIL", "it differs"),
    "second": Finding("ERROR", "it crashes"),
    "third": Finding("FAIL", "it differs"),
}
COSTS = [Costs(1234, 5.0, 3, 200.0, 60), Costs(0, 0.0, None, 200.0, 60)]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the findings and costs of `nope` and `alibi`, and a shortcut of each task."""

    def examine(subject: Any) -> dict[str, Finding]:
        name = type(subject.make_encoding(CONFIG, 0)).__name__
        return dict(GOOD if name == "NoPE" else WRONG)

    def costs(make: Any) -> Costs:
        return COSTS[type(make(CONFIG, 0)).__name__ != "NoPE"]

    monkeypatch.setattr(encodings, "CHECKS", CHECKS)
    monkeypatch.setattr(encodings, "examine", examine)
    monkeypatch.setattr(table, "measure_costs", costs)
    monkeypatch.setattr(table, "_depth_note", lambda _: ["note: it is deep"])


@pytest.mark.usefixtures("given", "four_layers")
def test_the_table_of_encodings(capsys: pytest.CaptureFixture[str]) -> None:
    assert not table.check_encodings(["nope", "alibi"])
    *lines, legend, _ = capsys.readouterr().out.partition("\nhold ")
    assert lines[0].splitlines() == [
        "      hold n/a wrong parameters extra FLOPs extra cache",
        "nope     2   1     0      1,234      +2.50%       +5.0%",
        "alibi    0   0     3          0      +0.00%           -",
    ]
    assert legend
    assert table.check_encodings(["nope"])


def test_reasons_that_differ_in_a_shape_share_a_line() -> None:
    of_40 = Finding("ERROR", "Mine.bias returned (40,), expected (4, 40)")
    of_30 = Finding("ERROR", "Mine.bias returned (30,), expected (4, 30)")
    other = Finding("FAIL", "logits differ by 30")
    found = {"causal": of_40, "cache": of_30, "rows": other, "finite": Finding("FAIL", "by 40")}
    assert [*table.describe_findings({"mine": found}, verbose=False)] == [
        "mine: causal, cache: Mine.bias returned (40,), expected (4, 40)",
        "mine: rows: logits differ by 30",
        "mine: finite: by 40",
    ]


@pytest.mark.usefixtures("given", "four_layers")
def test_the_wide_table_of_encodings(capsys: pytest.CaptureFixture[str]) -> None:
    assert not table.check_encodings(["alibi", "nope"], wide=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "      first second third parameters extra FLOPs extra cache",
        "alibi FAIL  ERROR  FAIL           0      +0.00%           -",
        "nope  ok    -      ok         1,234      +2.50%       +5.0%",
        "",
        "first        The first property.",
        "second       The second property, with a name that takes more than a line of",
        "             eighty columns: all of it.",
        "third        The first property.",
        "parameters   of all layers",
        "extra FLOPs  floating-point operations per token",
        "extra cache  numbers kept per token; -: no cache can be used",
        "-            not claimed, or does not apply",
        *table.COSTS_LEGEND.splitlines(),
        "alibi: first, third: it differs",
        "alibi: second: it crashes",
        "alibi: note: it is deep",
        "nope: note: it is deep",
    ]


@pytest.mark.usefixtures("given", "four_layers")
def test_every_finding_is_a_line_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    table.check_encodings(["nope", "alibi"], verbose=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[lines.index(table.COSTS_LEGEND.splitlines()[-1]) + 1 :] == [
        "nope: first, third, costs: ok",
        "nope: second: -: is not claimed",
        "alibi: first, third: FAIL: it differs",
        "alibi: second: ERROR: it crashes",
        "alibi: costs: ok",
        "nope: note: it is deep",
        "alibi: note: it is deep",
    ]


@pytest.mark.usefixtures("given", "four_layers")
def test_costs_that_cannot_be_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(table, "measure_costs", lambda _: 1 / 0)
    assert not table.check_encodings(["nope"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["nope", "2", "1", "0", "?", "?", "?"]
    assert any(line.startswith("nope: costs: ZeroDivisionError: division") for line in lines)


SHORTCUT_SCORES = {
    "copying": [
        ShortcutScore("copy", "3-gram table", 0.256, NAN),
        ShortcutScore("copy", "last", 0.1, 0.5),
        ShortcutScore("reverse", "3-gram table", NAN, 0.004),
    ],
    "mqar": [ShortcutScore("", "candidate", 1.0, 0.75)],
}


@pytest.mark.parametrize(("verbose", "wide"), [(False, False), (False, True), (True, True)])
def test_the_table_of_tasks(
    verbose: bool,
    wide: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def examine(subject: TaskSubject) -> dict[str, Finding]:
        found = dict(GOOD) if subject.plugin.label == "copying" else dict(WRONG)
        status = "-" if subject.plugin.label == "passkey" else "FAIL"
        return {**found, "shortcuts": Finding(status, "why") if found != GOOD else Finding("ok")}

    monkeypatch.setenv("PE_BENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(tasks, "CHECKS", {**CHECKS, "shortcuts": first})
    monkeypatch.setattr(tasks, "examine", examine)
    monkeypatch.setattr(TaskSubject, "make", lambda _: None)
    monkeypatch.setattr(table, "processes", first)
    shortcut_scores = property(lambda self: SHORTCUT_SCORES[self.plugin.label])
    monkeypatch.setattr(TaskSubject, "shortcut_scores", shortcut_scores)
    assert not table.check_tasks(["copying", "mqar", "passkey"], verbose=verbose, wide=wide)
    lines = capsys.readouterr().out.splitlines()
    if wide:
        assert lines[:5] == [
            "        first second third shortcuts processes",
            "copying ok    -      ok    ok        ok       ",
            "mqar    FAIL  ERROR  FAIL  FAIL      ok       ",
            "passkey FAIL  ERROR  FAIL  -         ok       ",
            "",
        ]
        last_of_legend = "-          not claimed, or does not apply"
    else:
        assert lines[:5] == [
            "        hold n/a wrong",
            "copying    4   1     0",
            "mqar       1   0     4",
            "passkey    1   1     3",
            "",
        ]
        last_of_legend = "wrong  checks that fail; the reasons are below"
    start = lines.index(last_of_legend) + 2
    end = lines.index("", start)
    shortcuts = [
        "copying copy 3-gram table 26 % -",
        "copying copy last 10 % 50 %",
        "copying reverse 3-gram table - 0 %",
        "mqar candidate 100 % 75 %",
    ]
    head = ["shortcuts ID OOD"] if verbose else ["strongest shortcut ID OOD"]
    shown = head + (shortcuts if verbose else shortcuts[1:])
    assert [" ".join(line.split()) for line in lines[start:end]] == shown
    assert len({len(line) for line in lines[start:end]}) == 1
    wrong = ["first, third: it differs", "second: it crashes"]
    if not verbose:
        assert lines[end + 4 :] == [
            *(f"mqar: {line}" for line in [*wrong, "shortcuts: why"]),
            *(f"passkey: {line}" for line in wrong),
        ]
    assert table.check_tasks(["copying"])


@pytest.mark.parametrize(
    ("every", "first_layer", "noted"), [(4, 3, True), (2, 1, False), (3, 2, True), (99, 0, False)]
)
def test_a_note_names_layers_that_shallow_models_lack(
    every: int, first_layer: int, noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(make: Any, config: ModelConfig) -> list[int]:
        return list(range(every - 1, config.layers, every))

    monkeypatch.setattr(table, "find_unlike_layers", find)
    subject = Subject(lambda *_: None)  # type: ignore[arg-type]
    found = table._depth_note(subject)
    assert bool(found) is noted
    if noted:
        assert f"in a model of {first_layer} layers or fewer all are equal" in found[0]
    # Layers that are a fraction of all layers exist in a shallow model, too.
    monkeypatch.setattr(table, "find_unlike_layers", lambda _, config: [config.layers - 1])
    assert table._depth_note(subject) == []
