"""What each command passes on to the package, and what it prints of the answer.

The functions of the package are replaced by recorders; other tests ask what they do.
"""

import contextlib
import importlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

import pe_bench
from pe_bench.cli import main
from pe_bench.commands.plan_power import describe_plan
from pe_bench.commands.results import committed_folders
from pe_bench.config import ModelConfig
from pe_bench.grid.execution import ExecutionOptions
from pe_bench.grid.spec import GridSpec
from pe_bench.registry import plugins
from pe_bench.runs.options import RunOptions
from pe_bench.runs.outcome import Outcome

TABLES = "tables of the records"
LABELS = [["b", "a"], ["a", "c"]]
CHOSEN = [SimpleNamespace(encodings=own, about=SimpleNamespace(task=own[0])) for own in LABELS]
IMPORTED = SimpleNamespace(
    model=ModelConfig(layers=3, width=1024, vocab_size=32_000, train_length=2048),
    encoding="rope:base=5",
)
LATEX = r"\begin{table} \begin{table}"
PAIR = SimpleNamespace(first="tape:a=1", second="rope")
ANSWERS = SimpleNamespace(answers=["tape is better"], left_out=["rope was never run"])
MERGED = [
    ("one", SimpleNamespace(complaints=["x differs"])),
    ("two", SimpleNamespace(complaints=[])),
]


def reading(*folders: Path) -> Any:
    return contextlib.nullcontext(folders)


Case = tuple[str, Mapping[str, Any], list[tuple[Any, ...]], str, int]
"""A command line; what functions return, by their path in `pe_bench`, or what replaces them; their
calls; the output; the exit code."""

SELECTED: dict[str, Any] = {
    "results.reading.reading": reading,
    "reporting.tables.make_tables": TABLES,
    "reporting.selection.select_tables": CHOSEN,
    "reporting.selection.find_labels": "labels",
    "reporting.display.read_names": "names",
}
COMPARED: dict[str, Any] = {
    "results.reading.reading": reading,
    "reporting.tables.make_tables": TABLES,
    "reporting.verdicts.choose_tables": "chosen",
}
HERE = (Path("there"),)
CASES: list[Case] = [
    (
        "checkpoint rope/lm/0 saved --subset far --results there",
        {"results.store.find_run": "run", "runs.trained_models.copy_kept": None},
        [("find_run", "rope/lm/0", *HERE), ("copy_kept", "run", Path("saved"), "far")],
        'AutoModelForCausalLM.from_pretrained("saved")\n',
        0,
    ),
    (
        "checkpoint rope/lm/0 coded",
        {"results.store.find_run": "run", "runs.trained_models.copy_kept": None},
        [("find_run", "rope/lm/0", Path("results")), ("copy_kept", "run", Path("coded"), None)],
        'AutoModelForCausalLM.from_pretrained("coded", trust_remote_code=True)\n',
        0,
    ),
    (
        "import a.gguf folder",
        {"pretrained.gguf.import_gguf": IMPORTED},
        [("import_gguf", Path("a.gguf"), Path("folder"))],
        "3 layers of width 1024, 32,000 ids, trained on 2,048 tokens, encoding rope:base=5\n"
        "pe-bench run --from folder --encoding rope --task ...\n",
        0,
    ),
    (
        "list encodings --wide",
        {"commands.encoding_table.encoding_table": "the table"},
        [("encoding_table", plugins.names("encoding"), {"wide": True})],
        "the table\n",
        0,
    ),
    (
        "list encodings",
        {"commands.encoding_table.encoding_table": "the table"},
        [("encoding_table", plugins.names("encoding"), {"wide": False})],
        "the table\n",
        0,
    ),
    (
        "list mqar",
        {"commands.list_plugin.show_plugin": "about it"},
        [("show_plugin", "task", "mqar")],
        "about it\n",
        0,
    ),
    (
        "results",
        {"commands.results.committed_folders": {"a": Path("x/a"), "b": Path("x/b")}},
        [("committed_folders",)],
        "x/a\nx/b\nnext: pe-bench merge DIR, or pe-bench compare tape rope --results DIR\n",
        0,
    ),
    (
        "results b",
        {"commands.results.committed_folders": {"a": Path("x/a"), "b": Path("x/b")}},
        [("committed_folders",)],
        "x/b\n",
        0,
    ),
    (
        "report one two --reference tape --export out",
        {"reporting.report.write_report": [Path("x.md"), Path("y.csv")]},
        [
            (
                "write_report",
                (Path("one"), Path("two")),
                "tape",
                Path("out"),
                {"jobs": os.cpu_count()},
            )
        ],
        "x.md\ny.csv\n",
        0,
    ),
    (
        "report --results there",
        {"reporting.report.write_report": [Path("x.md")]},
        [("write_report", HERE, None, None, {"jobs": os.cpu_count()})],
        "x.md\n",
        0,
    ),
    (
        "report one two --encoding b a --task lm --width 3.5 --label a=A",
        {**SELECTED, "reporting.paper_figures.save_figures": [Path("f.pdf")]},
        [
            ("make_tables", (Path("one"), Path("two"))),
            ("select_tables", TABLES, ("lm",), ("b", "a")),
            ("find_labels", ("b", "a"), ["b", "a", "c"]),
            ("read_names", ("a=A",), ["b", "a", "c"]),
            (
                "save_figures",
                CHOSEN,
                Path("one/figures"),
                3.5,
                {"encodings": "labels", "names": "names"},
            ),
        ],
        "f.pdf\neach also as .svg and .png, with a caption in .txt\n",
        0,
    ),
    (
        "report --figures drawn --results there",
        {**SELECTED, "reporting.paper_figures.save_figures": []},
        [
            ("make_tables", HERE),
            ("select_tables", TABLES, None, None),
            ("find_labels", (), ["b", "a", "c"]),
            ("read_names", (), ["b", "a", "c"]),
            ("save_figures", CHOSEN, Path("drawn"), 5.5, {"encodings": "labels", "names": "names"}),
        ],
        "each also as .svg and .png, with a caption in .txt\n",
        0,
    ),
    (
        "export new/table.tex --encoding b a --task lm --label a=A --family --results there",
        {
            **SELECTED,
            "reporting.frames.finished_runs": ["a run"],
            "reporting.paper_table.write_tables": LATEX,
            "system.files.write_atomic": None,
        },
        [
            ("finished_runs", HERE),
            ("make_tables", HERE),
            ("select_tables", TABLES, ("lm",), ("b", "a")),
            ("find_labels", ("b", "a"), ["b", "a", "c"]),
            ("read_names", ("a=A",), ["b", "a", "c"]),
            (
                "write_tables",
                CHOSEN,
                "table",
                {
                    "encodings": "labels",
                    "names": "names",
                    "families": True,
                    "comments": [
                        f"Written by pe-bench {pe_bench.__version__} from there.",
                        r"The preamble needs \usepackage{booktabs}.",
                    ],
                },
            ),
            ("write_atomic", Path("new/table.tex"), LATEX),
        ],
        "new/table.tex: 2 tables, 3 encodings, 2 tasks; "
        "the preamble needs \\usepackage{booktabs}\n",
        0,
    ),
    (
        "export folder --results there",
        {
            "results.reading.reading": reading,
            "reporting.frames.finished_runs": ["a run", "another"],
            "results.export.write_export": None,
        },
        [
            ("finished_runs", HERE),
            ("finished_runs", HERE),
            ("write_export", Path("folder"), ["a run", "another"]),
        ],
        "folder: 2 runs; on another machine, pe-bench merge folder copies them into ./results\n",
        0,
    ),
    (
        "compare --all --task lm mqar --results there",
        {**COMPARED, "reporting.ranks.describe_ranks": "ranks"},
        [
            ("make_tables", HERE),
            ("choose_tables", TABLES, ("lm", "mqar")),
            ("describe_ranks", "chosen"),
        ],
        "ranks\n",
        0,
    ),
    (
        "compare --task lm --results there --ask questions.toml more",
        {
            **COMPARED,
            "reporting.questions.parse_pairs": "pairs",
            "reporting.questions.answer": ANSWERS,
        },
        [
            ("make_tables", HERE),
            ("choose_tables", TABLES, ("lm",)),
            ("parse_pairs", ("questions.toml", "more"), ("lm",)),
            ("answer", "chosen", "pairs"),
        ],
        "tape is better\nrope was never run\n",
        0,
    ),
    (
        "compare --results there --ask questions.toml",
        {
            **COMPARED,
            "reporting.questions.read_questions": "questions",
            "reporting.questions.answer": ANSWERS,
        },
        [
            ("make_tables", HERE),
            ("choose_tables", TABLES, None),
            ("read_questions", Path("questions.toml")),
            ("answer", "chosen", "questions"),
        ],
        "tape is better\nrope was never run\n",
        0,
    ),
    (
        "compare tape rope --results there",
        {
            **COMPARED,
            "reporting.verdicts.judge": PAIR,
            "reporting.sentences.describe": ["one", "two"],
            "reporting.forest.draw_forest": "figure",
            "reporting.panels.save": None,
        },
        [
            ("make_tables", HERE),
            ("choose_tables", TABLES, None),
            ("judge", "chosen", "tape", "rope"),
            ("describe", PAIR),
            ("draw_forest", PAIR),
            ("save", "figure", [Path("there/plots/compare-tape_a=1-rope.png")]),
        ],
        "one\ntwo\n\nthere/plots/compare-tape_a=1-rope.png\n",
        0,
    ),
    (
        "check tape mqar -v --wide --kv-heads 2",
        {"checks.table.check_encodings": True, "checks.table.check_tasks": False},
        [
            ("check_encodings", ["tape"], "cpu", {"kv_heads": 2, "verbose": True, "wide": True}),
            ("check_tasks", ["mqar"], {"verbose": True}),
        ],
        "\n",
        1,
    ),
    (
        "check tape mqar rope tape",
        {"checks.table.check_encodings": False, "checks.table.check_tasks": True},
        [
            (
                "check_encodings",
                ["tape", "rope"],
                "cpu",
                {"kv_heads": 0, "verbose": False, "wide": False},
            ),
            ("check_tasks", ["mqar"], {"verbose": False}),
        ],
        "\n",
        1,
    ),
    (
        "check all",
        {"checks.table.check_encodings": True},
        [
            (
                "check_encodings",
                plugins.names("encoding"),
                "cpu",
                {"kv_heads": 0, "verbose": False, "wide": False},
            )
        ],
        "",
        0,
    ),
    (
        "check tasks",
        {"checks.table.check_tasks": True},
        [("check_tasks", plugins.names("task"), {"verbose": False})],
        "",
        0,
    ),
    (
        "merge one two --results there",
        {"results.merging.merge_folders": MERGED, "results.merging.describe_merge": "copied"},
        [
            ("merge_folders", (Path("one"), Path("two")), *HERE, [None, None]),
            *(("describe_merge", folder, found) for folder, found in MERGED),
        ],
        "copied\ncopied\nruns are in there; next: pe-bench report --results there\n",
        1,
    ),
    (
        "merge one",
        {"results.merging.merge_folders": MERGED[1:], "results.merging.describe_merge": "copied"},
        [
            ("merge_folders", (Path("one"),), Path("results"), [None]),
            ("describe_merge", "two", MERGED[1][1]),
        ],
        "copied\nruns are in results; next: pe-bench report\n",
        0,
    ),
]


@pytest.mark.parametrize(
    ("words", "replaced", "calls", "out", "code"),
    CASES,
    ids=[case[0] for case in CASES],
)
def test_what_a_command_passes_on(
    words: str,
    replaced: Mapping[str, Any],
    calls: list[tuple[Any, ...]],
    out: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found: list[tuple[Any, ...]] = []

    def record(name: str, value: Any) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            found.append((name, *given, named) if named else (name, *given))
            return value

        return call

    for path, value in replaced.items():
        module, _, name = path.rpartition(".")
        own = value if callable(value) else record(name, value)
        monkeypatch.setattr(importlib.import_module(f"pe_bench.{module}"), name, own)
    monkeypatch.chdir(tmp_path)
    for folder in ("one", "two", "there", "coded"):
        (tmp_path / folder).mkdir()
    (tmp_path / "coded" / "modeling_pe_bench.py").touch()
    assert main(words.split()) == code
    assert found == calls
    assert capsys.readouterr().out == out


OUTCOMES = [
    Outcome("a", "done", folder=Path("runs/a")),
    Outcome("b", "failed", ("b: no data",), Path("runs/b")),
    Outcome("c", "skipped", ("c: no digits",)),
    Outcome("d", "failed", cause="KeyError: 1", folder=Path("runs/d")),
    Outcome("e", "failed", cause="killed"),
    Outcome("f", "skipped"),
]


@pytest.fixture
def grids(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """Replace the execution of grids; return their arguments."""
    found = SimpleNamespace(run=[], prepared=[], summaries=[], outcomes=OUTCOMES, problems=[])

    def run_grid(spec: GridSpec, describe: Any = None) -> list[Outcome]:
        found.run.append((spec, describe))
        return list(found.outcomes)

    def prepare_grid(spec: GridSpec, describe: Any) -> Any:
        found.prepared.append((spec, describe))
        return SimpleNamespace(seconds=600.0 * len(found.prepared))

    def summarize(folders: Any, results: Path, *, seconds: float, **how: bool) -> list[str]:
        assert seconds >= 0
        found.summaries.append((folders, results, how))
        return list(found.problems)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pe_bench.grid.grid.run_grid", run_grid)
    monkeypatch.setattr("pe_bench.grid.grid.prepare_grid", prepare_grid)
    monkeypatch.setattr("pe_bench.commands.run.summarize_runs", summarize)
    return found


def test_run_executes_a_grid_and_repeats_its_failures(
    grids: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "run --encoding nope ./mine.py --task mqar --seeds 3 4 --results there --preset mid"
    grids.problems = ["x is damaged", "b: no data"]
    more = ["--device", "cpu", "--precision", "bf16", "--jobs", "2", "--wide", "--no-report"]
    assert main([*words.split(), *more]) == 2
    spec = GridSpec(
        options=RunOptions(preset="mid", precision="bf16"),
        encodings=("nope", "./mine.py"),
        tasks=("mqar",),
        seeds=(3, 4),
        results=Path("there"),
        device="cpu",
        execution=ExecutionOptions(jobs=2),
        committed=tuple(committed_folders().values()),
    )
    assert grids.run == [(spec, describe_plan)] and not grids.prepared
    folders = [Path("runs/a"), Path("runs/b"), Path("runs/d")]
    assert grids.summaries == [(folders, Path("there"), {"wide": True, "report": False})]
    lines = ["b: no data", "c: no digits", "x is damaged"]
    lines += ["d failed, KeyError: 1; see runs/d/run.json", "e failed, killed"]
    assert capsys.readouterr().err.splitlines() == [f"pe-bench: {line}" for line in lines]
    command = ["run", "--encoding", "nope", "--task", "mqar"]
    for outcomes, problems, code in (
        (OUTCOMES[:1], [], 0),
        (OUTCOMES[3:], [], 1),
        (OUTCOMES[:1], ["x"], 2),
        (OUTCOMES[4:], ["x"], 1),  # without a folder there is no summary
    ):
        grids.outcomes, grids.problems = outcomes, problems
        assert main(command) == code
    how = {"wide": False, "report": True}
    assert grids.summaries[1:] == [
        ([Path("runs/a")], Path("results"), how),
        ([Path("runs/d")], Path("results"), how),
        ([Path("runs/a")], Path("results"), how),
    ]


def test_run_shows_all_grids_of_a_file_first(
    grids: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = "task = ['mqar', 'copying']\nencoding = 'nope'\n[[grid]]\n[[grid]]\nseeds = 7\n"
    Path("folder").mkdir()
    Path("folder/grid.toml").write_text(grid)
    assert main(["run", "folder/grid.toml", "--dry-run"]) == 0
    shown = [*grids.prepared]
    assert [spec.seeds for spec, _ in shown] == [(0,), (7,)] and not grids.run
    assert all(spec.like == (Path("folder"),) and not spec.counts_like for spec, _ in shown)
    lines = [line for line in capsys.readouterr().out.splitlines() if "fp32" not in line]
    assert lines == [
        "grid 1 of 2: mqar copying", "", "grid 2 of 2: mqar copying", "",
        "time of all 2 grids, as far as known: about 30 min", "",
    ]  # fmt: skip
    assert main(["run", "folder/grid.toml"]) == 2
    assert [spec.seeds for spec, _ in grids.run] == [(0,), (7,)] and len(grids.prepared) == 4
    assert {describe for _, describe in [*grids.run, *grids.prepared]} == {describe_plan}


def test_python_returns_the_rows_of_its_runs(
    grids: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = pd.DataFrame({"run": ["x", "d", "a", "y", "a"], "value": range(5)})
    monkeypatch.setattr("pe_bench.reporting.frames.read_results", {Path("there"): frame}.get)
    with pytest.warns(UserWarning, match="failed") as found:
        rows = pe_bench.run("nope", ["mqar", "copying"], results="there", seeds=[3], keep=True)
    assert [str(one.message) for one in found] == [
        "b failed: b: no data", "d failed: KeyError: 1", "e failed: killed"
    ]  # fmt: skip
    assert {one.filename for one in found} == {__file__}
    expected = pd.DataFrame({"run": ["d", "a", "a"], "value": [1, 2, 4]})
    pd.testing.assert_frame_equal(rows, expected)
    ((spec, describe),) = grids.run
    assert (spec.encodings, spec.tasks, spec.seeds) == (("nope",), ("mqar", "copying"), (3,))
    assert (spec.options, spec.results, describe) == (RunOptions(keep=True), Path("there"), None)


def test_committed_results_are_in_the_package_or_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "pe_bench"
    monkeypatch.setattr("pe_bench.commands.results.PACKAGE", package)
    for name in ("results/b", "results/a", "pe_bench/committed/c"):
        beside = {name: tmp_path / "results" / name for name in ("a", "b")}
        if name.startswith("pe_bench"):
            assert committed_folders() == beside and list(committed_folders()) == ["a", "b"]
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "records.json").touch()
    assert committed_folders() == {"c": package / "committed" / "c"}


def test_a_list_has_every_plugin(capsys: pytest.CaptureFixture[str]) -> None:
    lines: dict[str, list[str]] = {}
    for kind in ("encoding", "task"):
        own = lines[kind] = [f"{kind}s"]
        own += [f"  {name:14} {plugins.describe(kind, name)}" for name in plugins.names(kind)]
    assert main(["list"]) == 0
    assert capsys.readouterr().out.splitlines() == [*lines["encoding"], *lines["task"]]
    assert main(["list", "tasks"]) == 0
    assert capsys.readouterr().out.splitlines() == lines["task"]
