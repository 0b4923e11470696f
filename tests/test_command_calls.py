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
from pe_bench.registry import catalogue
from pe_bench.runs.options import RunOptions
from pe_bench.runs.outcome import Outcome


class Named(SimpleNamespace):
    """A value whose text is its name."""

    def __str__(self) -> str:
        return str(self.name)


FIRST = Named(name="T1", encodings=["b", "a"], about=SimpleNamespace(task="lm"))
SECOND = Named(name="T2", encodings=["a", "c"], about=SimpleNamespace(task="mqar"))
IMPORTED = SimpleNamespace(
    model=ModelConfig(layers=3, width=1024, vocab_size=32_000, train_length=2048),
    encoding="rope:base=5",
)
PAIR = Named(name="verdict", first="tape:a=1", second="rope")
ANSWERS = SimpleNamespace(answers=["tape is better"], left_out=["rope was never run"])
MERGED = [
    ("one", Named(name="M1", complaints=["x differs"])),
    ("two", Named(name="M2", complaints=[])),
]
COMMITTED = {"a": Path("x/a"), "b": Path("x/b")}
CORES = os.cpu_count()
ENCODINGS, TASKS = " ".join(catalogue.names("encoding")), " ".join(catalogue.names("task"))


def reading(*folders: Path) -> Any:
    return contextlib.nullcontext(folders)


RUN = Named(name="run", encoding="rope", adaptation=None)
KEPT = {"results.store.find_run": RUN, "runs.trained_models.copy_kept": None}
READ: dict[str, Any] = {
    "results.reading.reading": reading,
    "reporting.tables.make_tables": "tables",
}
DRAWN: dict[str, Any] = {
    **READ,
    "reporting.selection.select_tables": [FIRST, SECOND],
    "reporting.selection.find_labels": "labels",
    "reporting.display_names.read_names": "names",
}
LEFT_OUT: dict[str, Any] = {"reporting.frames.describe_unused_runs": []}
COMPARED: dict[str, Any] = {**READ, **LEFT_OUT, "reporting.verdicts.tables_to_compare": "chosen"}
CHECKED = {"checks.table.check_encodings": True, "checks.table.check_tasks": True}
FIGURES = "each also as .svg and .png, with a caption in .txt\n"

# A command line; what functions return, by their path in `pe_bench`, or what replaces them; their
# calls; the output; the exit code.
Case = tuple[str, Mapping[str, Any], str, str, int]
# fmt: off
CASES: list[Case] = [
    ("checkpoint rope/lm/0 saved --subset far --results there", KEPT,
     "find_run rope/lm/0 there\ncopy_kept run saved far",
     'AutoModelForCausalLM.from_pretrained("saved")\n', 0),
    ("checkpoint rope/lm/0 coded", KEPT,
     "find_run rope/lm/0 results\ncopy_kept run coded None",
     'AutoModelForCausalLM.from_pretrained("coded", trust_remote_code=True)\n', 0),
    ("checkpoint mine.py:a=1/lm/0 coded",
     {**KEPT, "results.store.find_run": Named(name="run", encoding="mine.py:a=1", adaptation=None)},
     "find_run mine.py:a=1/lm/0 results\ncopy_kept run coded None",
     'AutoModelForCausalLM.from_pretrained("coded", trust_remote_code=True, '
     'encoding_spec="path/to/mine.py:a=1")\n', 0),
    ("import a.gguf folder", {"pretrained.gguf.import_gguf": IMPORTED},
     "import_gguf a.gguf folder",
     "3 layers of width 1024, 32,000 ids, trained on 2,048 tokens, encoding rope:base=5\n"
     "pe-bench run --from folder --encoding rope --task ...\n", 0),
    ("list encodings --wide", {"commands.encoding_table.encoding_table": "the table"},
     f"encoding_table [{ENCODINGS}] wide=True", "the table\n", 0),
    ("list encodings", {"commands.encoding_table.encoding_table": "the table"},
     f"encoding_table [{ENCODINGS}] wide=False", "the table\n", 0),
    ("list mqar", {"commands.list_plugin.show_plugin": "about it"},
     "show_plugin task mqar", "about it\n", 0),
    ("results", {"commands.results.committed_folders": COMMITTED}, "committed_folders",
     "x/a\nx/b\nnext: pe-bench merge DIR, or pe-bench compare tape rope --results DIR\n", 0),
    ("results b", {"commands.results.committed_folders": COMMITTED}, "committed_folders",
     "x/b\n", 0),
    ("report one two --reference tape --export out",
     {"reporting.report.write_report": [Path("x.md"), Path("y.csv")]},
     f"write_report [one two] tape out jobs={CORES}", "x.md\ny.csv\n", 0),
    ("report --results there", {"reporting.report.write_report": [Path("x.md")]},
     f"write_report [there] None None jobs={CORES}", "x.md\n", 0),
    ("report one two --encoding b a --task lm --width 3.5 --label a=A",
     {**DRAWN, "reporting.paper_figures.save_paper_figures": [Path("f.pdf")]},
     "make_tables [one two]\nselect_tables tables [lm] [b a]\nfind_labels [b a] [b a c]\n"
     "read_names [a=A] [b a c]\n"
     "save_paper_figures [T1 T2] one/figures 3.5 encodings=labels names=names",
     f"f.pdf\n{FIGURES}", 0),
    ("report --figures drawn --results there",
     {**DRAWN, "reporting.paper_figures.save_paper_figures": []},
     "make_tables [there]\nselect_tables tables None None\nfind_labels [] [b a c]\n"
     "read_names [] [b a c]\nsave_paper_figures [T1 T2] drawn 5.5 encodings=labels names=names",
     FIGURES, 0),
    ("export new/table.tex --encoding b a --task lm --label a=A --family --results there",
     {**DRAWN, "reporting.frames.finished_runs": ["a run"], **LEFT_OUT,
      "system.files.write_atomic": None,
      "reporting.paper_table.write_tables": r"\begin{table} \begin{table}"},
     "finished_runs [there]\nmake_tables [there]\nselect_tables tables [lm] [b a]\n"
     "find_labels [b a] [b a c]\nread_names [a=A] [b a c]\n"
     "write_tables [T1 T2] table encodings=labels names=names families=True "
     f"comments=[Written by pe-bench {pe_bench.__version__} from there. "
     "The preamble needs \\usepackage{booktabs}.]\n"
     r"write_atomic new/table.tex \begin{table} \begin{table}" "\ndescribe_unused_runs [there]",
     "new/table.tex: 2 tables, 3 encodings, 2 tasks; "
     "the preamble needs \\usepackage{booktabs}\n", 0),
    ("export folder --results there",
     {"results.reading.reading": reading, "results.export.write_export": None,
      "reporting.frames.finished_runs": ["a run", "another"], **LEFT_OUT},
     "finished_runs [there]\nfinished_runs [there]\nwrite_export folder [a run another]\n"
     "describe_unused_runs [there]",
     "folder: 2 runs; on another machine, pe-bench merge folder copies them into ./results\n", 0),
    ("compare --all --task lm mqar --results there",
     {**COMPARED, "reporting.ranks.describe_ranks": "ranks"},
     "make_tables [there]\ntables_to_compare tables [lm mqar]\ndescribe_ranks chosen\n"
     "describe_unused_runs [there] [] [lm mqar]", "ranks\n", 0),
    ("compare --task lm --results there --ask questions.toml more",
     {**COMPARED, "reporting.questions.parse_pairs": "pairs",
      "reporting.questions.answer": ANSWERS},
     "make_tables [there]\ntables_to_compare tables [lm]\nparse_pairs [questions.toml more] [lm]\n"
     "answer chosen pairs\ndescribe_unused_runs [there] [] [lm]",
     "tape is better\nrope was never run\n", 0),
    ("compare --results there --ask questions.toml",
     {**COMPARED, "reporting.questions.read_questions": "asked",
      "reporting.questions.answer": ANSWERS},
     "make_tables [there]\ntables_to_compare tables None\nread_questions questions.toml\n"
     "answer chosen asked\ndescribe_unused_runs [there] [] []",
     "tape is better\nrope was never run\n", 0),
    ("compare tape rope --results there",
     {**COMPARED, "reporting.verdicts.compare_pair": PAIR,
      "reporting.sentences.describe": ["one", "two"],
      "reporting.forest.draw_forest": "figure", "reporting.panels.save": None,
      "reporting.selection.labels_of": ["tape", "rope"]},
     "make_tables [there]\ntables_to_compare tables None\nlabels_of [tape rope] chosen\n"
     "compare_pair chosen tape rope\ndescribe verdict\n"
     "draw_forest verdict\nsave figure [there/plots/compare-tape_a=1-rope.png]\n"
     "describe_unused_runs [there] [tape rope] []",
     "one\ntwo\n\nthere/plots/compare-tape_a=1-rope.png\n", 0),
    ("check tape mqar -v --wide --kv-heads 2", {**CHECKED, "checks.table.check_tasks": False},
     "check_encodings [tape] cpu kv_heads=2 verbose=True wide=True\n"
     "check_tasks [mqar] data={} verbose=True wide=True", "\n", 1),
    ("check tape mqar rope tape", {**CHECKED, "checks.table.check_encodings": False},
     "check_encodings [tape rope] cpu kv_heads=0 verbose=False wide=False\n"
     "check_tasks [mqar] data={} verbose=False wide=False", "\n", 1),
    ("check all", CHECKED,
     f"check_encodings [{ENCODINGS}] cpu kv_heads=0 verbose=False wide=False", "", 0),
    ("check tasks", CHECKED, f"check_tasks [{TASKS}] data={{}} verbose=False wide=False", "", 0),
    ("merge one two --results there",
     {"results.merging.merge_folders": MERGED, "results.merging.describe_merge": "copied"},
     "merge_folders [one two] there [None None]\ndescribe_merge one M1\ndescribe_merge two M2",
     "copied\ncopied\nruns are in there; next: pe-bench report --results there\n", 1),
    ("merge one",
     {"results.merging.merge_folders": MERGED[1:], "results.merging.describe_merge": "copied"},
     "merge_folders [one] results [None]\ndescribe_merge two M2",
     "copied\nruns are in results; next: pe-bench report\n", 0),
]
# fmt: on


def show(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{' '.join(map(show, value))}]"
    return str(value)


@pytest.mark.parametrize(("words", "replaced", "calls", "out", "code"), CASES)
def test_what_a_command_passes_on(
    words: str,
    replaced: Mapping[str, Any],
    calls: str,
    out: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found: list[str] = []

    def record(name: str, value: Any) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            options = [f"{key}={show(option)}" for key, option in named.items()]
            found.append(" ".join([name, *map(show, given), *options]))
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
    assert "\n".join(found) == calls
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
    for spec, _ in shown:
        assert spec.earlier_results == (Path("folder"),) and not spec.copies_earlier
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


def test_python_draws_every_table(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = [Named(name="lm"), Named(name="mqar")]
    calls: list[Any] = []

    def draw(table: Any, among: Any) -> dict[str, str]:
        calls.append((table, among))
        return {"near end": f"part of {table}", "": f"all of {table}"}

    read = {Path("there"): "records"}
    monkeypatch.setattr("pe_bench.results.reading.read_with_warnings", read.get)
    monkeypatch.setattr("pe_bench.reporting.tables.make_tables", {"records": tables}.get)
    monkeypatch.setattr("pe_bench.reporting.figure_files.draw", draw)
    figures: Any = pe_bench.draw_figures("there")
    assert figures == {
        "lm-near_end": "part of lm", "lm": "all of lm",
        "mqar-near_end": "part of mqar", "mqar": "all of mqar",
    }  # fmt: skip
    assert calls == [(table, tables) for table in tables]


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


def test_a_list_has_every_plugin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(catalogue, "describe", lambda kind, name: f"the {kind} {name}")
    lines: dict[str, list[str]] = {}
    for kind in ("encoding", "task"):
        own = lines[kind] = [f"{kind}s"]
        own += [f"  {name:14} the {kind} {name}" for name in catalogue.names(kind)]
    assert main(["list"]) == 0
    assert capsys.readouterr().out.splitlines() == [*lines["encoding"], *lines["task"]]
    assert main(["list", "tasks"]) == 0
    assert capsys.readouterr().out.splitlines() == lines["task"]
