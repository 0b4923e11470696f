"""Time and memory: measurements, reasons for omissions, and the report."""

import ctypes
import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pandas as pd
import pytest
import torch
from helpers import make_task
from scripts import load_script

from pe_bench.checks.counting import count_products
from pe_bench.cli import main
from pe_bench.config import ModelConfig
from pe_bench.decoder import attention
from pe_bench.decoder.attention import Backend, attend
from pe_bench.decoder.cache import Cache
from pe_bench.decoder.model import Decoder
from pe_bench.encoding import Encoding
from pe_bench.errors import InputError
from pe_bench.registry import plugins
from pe_bench.reporting.cost_charts import find_quality
from pe_bench.reporting.curves import draw_curves
from pe_bench.reporting.notes import write_notes
from pe_bench.reporting.paired import compare_table
from pe_bench.reporting.tables import Table, read_tables
from pe_bench.reporting.tradeoff import draw_tradeoff
from pe_bench.results.journal import Journal
from pe_bench.results.measurement import Measurement
from pe_bench.runs.options import RunOptions
from pe_bench.runs.resolve import resolve
from pe_bench.system import environment
from pe_bench.tasks.efficiency import bench, memory, timing
from pe_bench.tasks.efficiency.attention_layer import MiddleLayer
from pe_bench.tasks.efficiency.cases import Case, Limits, Meter, Pass, make_rows
from pe_bench.tasks.efficiency.memory import GIB, peak_bytes, predict
from pe_bench.tasks.efficiency.models import Decoding, Prefill, Setting, TrainingStep
from pe_bench.tasks.efficiency.task import Efficiency
from pe_bench.tasks.efficiency.timing import Turns, quartiles, take_turns


@pytest.fixture(autouse=True, scope="module")
def short_measurements() -> Iterator[None]:
    """Shorten all measurements."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "LEAST_SECONDS", 1e-4)
        yield


TINY = ModelConfig(layers=2, heads=2, width=16, mlp_width=16, vocab_size=32, train_length=16)
LIMITS = Limits(repeats=3, seconds=60.0, memory=1.0)
HEADS = 12
LENGTH = 256
PAIRS = HEADS * LENGTH**2 * 4  # bytes of one number for each head, query and key


def idle() -> None:
    pass


def encoding(name: str) -> Any:
    return plugins.load("encoding", name).make


def test_memory_of_allocations_that_are_known() -> None:
    def allocate() -> None:
        first = torch.empty(1000, 1000)
        del first
        second = torch.empty(600, 1000)
        third = torch.empty(600, 1000)
        del second, third

    assert peak_bytes(allocate, "cpu") == 4_800_000
    assert peak_bytes(idle, "cpu") == 0


def test_memory_of_attention() -> None:
    q, k, v = (torch.randn(1, HEADS, LENGTH, 16) for _ in range(3))
    softmax = peak_bytes(lambda: (q @ k.mT).softmax(-1), "cpu")
    assert 2 * PAIRS <= softmax <= 2.1 * PAIRS  # input and output
    eager = peak_bytes(lambda: attend(q, k, v, backend="eager"), "cpu")
    assert 2 * PAIRS <= eager <= 4 * PAIRS
    assert peak_bytes(lambda: attend(q, k, v, backend="sdpa"), "cpu") < 0.5 * PAIRS


FREED_MEMORY = """
import ctypes, torch
from pe_bench.system import environment

class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd",
        "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]

mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Mallinfo
environment.set_up("cpu")
tensors = [torch.ones(6 * 2**20) for _ in range(4)]  # of 24 MiB
mapped = mallinfo().hblkhd
del tensors
print(mapped // 2**20, mallinfo().fordblks // 2**20)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator than glibc's")
def test_freed_memory_is_kept() -> None:
    """The allocator's count is compared, because pages in use depend on other processes."""
    command = [sys.executable, "-c", FREED_MEMORY]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    mapped, kept = map(int, done.stdout.split())
    assert mapped < 24 and kept >= 90  # of 96 MB, on the heap


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can trim")
def test_freed_memory_is_returned_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed: list[int] = []
    libc = SimpleNamespace(malloc_trim=trimmed.append)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: libc)
    environment.return_freed_memory()
    assert trimmed == [0]


def test_free_memory_is_what_linux_calls_available(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "meminfo"
    info.write_text("MemTotal:  9 kB\nMemFree:  1 kB\nMemAvailable:  5 kB\nBuffers:  2 kB\n")
    monkeypatch.setattr(memory, "Path", lambda _: info)
    assert memory.free_bytes("cpu") == 5 * 1024
    info.write_text("MemFree:  1 kB\n")
    assert memory.free_bytes("cpu") > 2**20  # all memory of this machine


def test_a_cost_is_predicted_from_shorter_inputs() -> None:
    def cost(n: int) -> float:
        return 3.0 * n + 0.5 * n**2

    assert predict({}, 64) == 0
    assert predict({16: 10.0}, 32) == 40  # at worst
    assert predict({8: cost(8), 16: cost(16), 32: cost(32)}, 128) == pytest.approx(cost(128))
    assert predict({16: 5.0, 32: 10.0}, 64) == pytest.approx(20)  # linear
    assert predict({16: 5.0, 32: 6.0}, 64) >= 12  # no less than linear
    assert predict({16: 1.0, 32: 10.0}, 64) == pytest.approx(40)  # no more than quadratic


def test_calls_take_turns() -> None:
    order: list[str] = []
    turns = take_turns(
        partial(order.append, "s"),
        partial(order.append, "r"),
        device="cpu",
        repeats=4,
        seconds=60,
        warm_up=2,
    )
    assert order[:4] == list("srsr")
    assert len(turns.subject) == len(turns.reference) == 4
    assert [name for name, _ in groupby(order[4:])] == list("rsrsr")  # rs, sr, rs, sr
    few = take_turns(idle, idle, device="cpu", repeats=9, seconds=0.0, warm_up=1)
    assert len(few.subject) == 3


def test_ratios_are_quotients_of_one_repetition() -> None:
    turns = Turns([2.0, 6.0, 9.0], [1.0, 2.0, 9.0])
    assert turns.ratios == [2.0, 3.0, 1.0]
    assert quartiles([3.0, 1.0, 2.0, 5.0, 4.0]) == (2.0, 3.0, 4.0)
    found = {
        "seconds": turns.subject,
        "reference_seconds": turns.reference,
        "bytes": 6 * 2**20,
        "reference_bytes": 2 * 2**20,
        "flops": 5_000_000_000,
        "tokens": 12,
        "steps": 2,
        "kept": 64,
        "chosen": "sdpa",
    }
    case = Case("a", "training", "auto", 16, 0, lambda _: {})
    rows = {
        row.metric: row for row in make_rows(case, {"decoding": found, "prefill": {"reason": "x"}})
    }
    assert rows["decoding_ms"].value == 3000  # time of one step
    assert rows["decoding_tokens_per_second"].value == 2
    ratio = rows["decoding_time_ratio"]
    assert (ratio.value, ratio.ci_low, ratio.ci_high, ratio.n) == (2.0, 1.5, 2.5, 3)
    assert (rows["decoding_mib"].value, rows["decoding_memory_ratio"].value) == (6, 3)
    assert rows["decoding_gflops"].value == 5 and rows["cache_bytes"].value == 64
    places = {(row.subset, row.length, row.second_axis) for row in rows.values()}
    assert places == {("training", 16, "sdpa")}


def layer(make: Any, backend: Backend = "auto", **changes: Any) -> MiddleLayer:
    options: dict[str, Any] = {"dtype": torch.float32, "projections": False, **changes}
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=options["dtype"] == torch.bfloat16)
    return MiddleLayer(TINY, make, backend, device="cpu", autocast=autocast, **options)


@pytest.mark.parametrize("name", ["nope", "rope", "alibi", "t5", "cope", "fox", "tape"])
def test_the_attention_of_a_layer_has_gradients_everywhere(name: str) -> None:
    subject = layer(encoding(name))
    seen: set[str] = set()
    parameters = dict(subject.layer.named_parameters())
    for key, parameter in parameters.items():
        parameter.register_hook(lambda _, key=key: seen.add(key))
    subject.forward()
    assert not seen
    subject.forward_backward()
    assert {f"attention.{name}_proj.tensor" for name in "qkv"} <= seen
    assert all(parameter.grad is None for parameter in parameters.values())


@pytest.mark.slow
def test_flex_attention_is_timed_and_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "FLEX_DEVICES", ["cpu"])
    for name in "ab":  # an attempt to count would spoil the second one
        passes = {"forward": Pass(layer(encoding("rope"), "flex").forward, idle)}
        case = Case(name, "operator", "auto", 16, 16, {16: passes}.__getitem__)
        rows = make_rows(case, make_meter(tmp_path).measure(case, {}))
        assert {row.metric for row in rows} >= {"forward_ms", "forward_time_ratio"}
        assert not [row for row in rows if row.metric == "forward_gflops"]


def test_the_attention_of_a_layer_costs_what_its_products_cost() -> None:
    length, width = TINY.train_length, TINY.width
    products = 4 * length**2 * width  # q k^T and the sum of values
    assert count_products(layer(Encoding).forward) == products
    assert count_products(layer(Encoding, "eager").forward) == products
    whole = count_products(layer(Encoding, projections=True).forward)
    assert whole == products + 4 * 2 * length * width**2
    assert count_products(layer(Encoding, "eager").forward_backward) == 3 * products
    assert count_products(layer(Encoding, "sdpa").forward_backward) == 3.5 * products
    half = layer(encoding("tape"), dtype=torch.bfloat16)
    half.forward_backward()
    assert half.layer.attention.q_proj.tensor.dtype == torch.bfloat16


def test_models_train_and_write() -> None:
    setting = Setting(TINY, 2, 8, "cpu", torch.autocast("cpu", enabled=False))
    step = TrainingStep(setting, encoding("rope"), "auto")
    before = step.model.lm_head.weight.detach().clone()
    step()
    assert not torch.equal(before, step.model.lm_head.weight)
    assert all(p.grad is None for p in step.model.parameters())
    prefill = Prefill(setting, encoding("fox"), "auto", 3)
    assert prefill().shape == (2, 1)
    per_token = 2 * TINY.layers * TINY.width + TINY.layers * TINY.heads  # and a gate for each head
    assert prefill.cache_bytes == 4 * per_token
    decoding = Decoding(setting, encoding("rope"), "auto", 3)
    first = decoding()
    again = decoding()
    assert torch.equal(first, again) and int(decoding.cache.lengths[0]) == 8 + 3
    assert [made.model.training for made in (step, prefill, decoding)] == [True, False, False]
    with pytest.raises(InputError, match="it has no cache"):
        Decoding(setting, encoding("rope:scaling=dynamic-ntk,factor=2"), "auto", 3)


def test_bytes_of_a_cache_follow_the_type() -> None:
    cache = Cache(1, 4)
    cache.begin(torch.zeros(1, 2, dtype=torch.long))
    cache.append("k", torch.zeros(1, 2, 2, 8, dtype=torch.bfloat16))
    cache.append("features", torch.zeros(1, 2, 2, 1))
    assert cache.bytes_per_token == 2 * 16 + 4 * 2


def make_meter(folder: Path, **limits: Any) -> Meter:
    return Meter(Journal(folder / "j.jsonl"), replace(LIMITS, **limits), "cpu")


def known(seconds: float, size: float) -> dict[str, Any]:
    return {"forward": {"seconds": [seconds] * 3, "bytes": size}}


def test_what_does_not_fit_is_left_out_with_a_reason(tmp_path: Path) -> None:
    calls: list[int] = []

    def passes(length: int) -> dict[str, Pass]:
        return {"forward": Pass(partial(calls.append, length), idle)}

    subject = make_meter(tmp_path)
    case = Case("a", "operator", "auto", 32, 32, passes)
    large = subject.measure(case, {16: known(0.1, GIB / 2)})["forward"]["reason"]
    assert large == "it would need about 2 GiB, but 1 are allowed"
    slow = subject.measure(replace(case, key="b"), {8: {"": {"reason": "x"}}, 16: known(30.0, 9.0)})
    assert slow["forward"]["reason"] == "a call would take about 120 s, but 60 are allowed"
    assert not calls
    assert subject.measure(case, {}) == subject.journal.items["a"]  # not measured again
    assert "seconds" in subject.measure(replace(case, key="c"), {16: known(0.1, 9.0)})["forward"]
    assert set(calls) == {32}
    assert [note.partition(":")[0] for note in subject.notes()] == ["a", "b"]


def test_notes_name_a_pass_where_others_are_measured(tmp_path: Path) -> None:
    def refuse() -> None:
        raise InputError("no gradient here")

    passes = {"forward": Pass(idle, idle), "forward_backward": Pass(refuse, idle)}
    subject = make_meter(tmp_path)
    for key in ("eager", "sdpa"):
        subject.measure(Case(key, "operator", "auto", 8, 8, lambda _: passes), {})
    assert subject.notes() == (
        "eager (forward backward), sdpa (forward backward): no gradient here",
    )


def test_memory_is_looked_at_where_nothing_shorter_is_known(tmp_path: Path) -> None:
    def passes(length: int) -> dict[str, Pass]:
        assert length < 1024, "measured at its whole length"
        kept = partial(torch.empty, length, length)
        return {"forward": Pass(kept, kept)}

    case = Case("a", "training", "auto", 1024, 10**6, passes)
    entry = make_meter(tmp_path, memory=2 / 1024).measure(case, {})
    assert entry[""]["reason"].startswith("it would need about 0.0039 GiB")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (InputError("not here: use eager"), "not here: use eager"),
        (MemoryError(), "it ran out of memory"),
        (RuntimeError("you tried to allocate 9 bytes"), "it ran out of memory"),
        (RuntimeError("a bug"), None),
    ],
)
def test_errors_become_reasons_and_bugs_do_not(
    error: Exception, reason: str | None, tmp_path: Path
) -> None:
    def passes(_: int) -> dict[str, Pass]:
        raise error

    case = Case("a", "operator", "auto", 8, 8, passes)
    if reason is None:
        with pytest.raises(RuntimeError, match="a bug"):
            make_meter(tmp_path).measure(case, {})
    else:
        assert make_meter(tmp_path).measure(case, {}) == {"": {"reason": reason}}


def small(folder: Path, **options: Any) -> Efficiency:
    sizes: dict[str, Any] = {**Efficiency.check_options, "repeats": 3}
    return make_task(Efficiency, folder, train={"length": 16}, **{**sizes, **options})


def evaluate(task: Efficiency, make: Any, folder: Path, subset: str) -> list[Measurement]:
    model = Decoder(replace(TINY, vocab_size=256), make)
    with torch.inference_mode():
        found = task.evaluate(model, subset, 0, Journal(folder / f"{subset}.jsonl"))
    assert not found.items
    return found.rows


@pytest.mark.slow
def test_every_backend_has_rows_or_a_reason(tmp_path: Path) -> None:
    rows = evaluate(small(tmp_path), encoding("cope"), tmp_path, "operator")
    entries = Journal(tmp_path / "operator.jsonl").items
    for backend in get_args(Backend):
        subset = "operator" if backend == "auto" else f"operator-{backend}"
        for length in (16, 32):
            entry = entries[f"{backend} at {length} tokens"]
            timed = {name for name, found in entry.items() if "seconds" in found}
            there = {row.metric for row in rows if (row.subset, row.length) == (subset, length)}
            assert {f"{name}_ms" for name in timed} == {m for m in there if m.endswith("_ms")}
    chosen = {(row.length, row.second_axis) for row in rows if row.subset == "operator"}
    assert chosen == {(16, "eager"), (32, "eager")}
    assert {row.second_axis for row in rows if row.subset == "operator-blocked"} == {"blocked"}
    assert "rewrites logits" in entries["sdpa at 16 tokens"]["forward"]["reason"]


def test_a_position_table_that_is_too_short_hurts_decoding_alone(tmp_path: Path) -> None:
    rows = evaluate(small(tmp_path), encoding("learned:rows=16"), tmp_path, "inference")
    assert {row.metric for row in rows} >= {"prefill_ms", "cache_bytes"}
    assert not [row for row in rows if row.metric.startswith("decoding")]
    found = Journal(tmp_path / "inference.jsonl").items["decoding, auto"]["decoding"]
    assert "positions 0 to 15" in found["reason"]


def test_the_machine_is_among_the_settings_of_times(tmp_path: Path) -> None:
    options = RunOptions(cache=tmp_path)
    timed = resolve(options, "efficiency")
    here = timed.with_conditions({"threads": 1})
    assert here.settings["conditions"] == {"threads": 1}
    there = timed.with_conditions({"threads": 2})
    assert len({timed.digest(), here.digest(), there.digest()}) == 3


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a report on two encodings, with a task of quality."""
    folder = tmp_path_factory.mktemp("results")
    tiny = ["--model.layers", "1", "--model.width", "16", "--model.heads", "2"]
    spec = "efficiency:shortest=16,longest=16,new_tokens=2,repeats=3"
    run = ["run", "--no-report", "--results", str(folder), "--encoding", "rope", "alibi", *tiny]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "BACKENDS", ("auto", "eager"))
        assert main([*run, "--task", spec, "--train.length", "16"]) == 0
    quality = ["--task", "flipflop:samples=2", "--train.steps", "1"]
    assert main([*run, *quality]) == 0
    assert main(["report", "--results", str(folder)]) == 0
    return folder


@pytest.fixture
def table(report: Path) -> Table:
    return next(table for table in read_tables(report) if table.about.measures_time)


@pytest.mark.slow
def test_a_report_of_times_says_what_they_are(report: Path) -> None:
    text = (report / "leaderboard.md").read_text(encoding="utf-8")
    timed, quality = text.split("\n## ")[1:]
    assert timed.startswith("efficiency") and quality.startswith("flipflop")
    assert "quartiles over repetitions" in timed and "quartiles" not in quality
    assert "### Published (not measured here)" in timed
    header = next(line for line in timed.splitlines() if line.startswith("| encoding "))
    assert "training (time, × reference ↓)" in header
    assert "attention (memory, × reference ↓)" in header


@pytest.mark.slow
def test_a_report_says_what_was_left_out(table: Table) -> None:
    first, second = (replace(record, notes=("eager: too slow",)) for record in table.records)
    lines = write_notes(replace(table, records=(first, second))).splitlines()
    assert "Left out for rope, alibi: eager: too slow." in lines
    lines = write_notes(replace(table, records=(replace(first, measures_time=False),))).splitlines()
    assert not any(line.startswith("Left out") for line in lines)


@pytest.mark.slow
def test_seeds_of_times_are_repetitions_and_not_compared(table: Table) -> None:
    again = table.rows.assign(seed=1, value=table.rows["value"] * 1.01)
    several = replace(table, rows=pd.concat([table.rows, again]))
    assert compare_table(several).pairs == []
    records = tuple(replace(record, measures_time=False) for record in table.records)
    assert len(compare_table(replace(several, records=records)).pairs) == 1


@pytest.mark.slow
def test_a_report_of_times_has_figures(report: Path) -> None:
    figures = sorted((report / "plots").glob("efficiency*.png"))
    assert len(figures) == 2 and figures[0].stem.endswith("-quality")


@pytest.mark.slow
def test_lines_are_logarithmic_and_that_of_the_reference_is_bold(table: Table) -> None:
    widths = {}
    figure = draw_curves(table, "alibi")
    labels = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert not any("$" in label for label in labels)
    for axis in figure.axes:
        if axis.get_visible() and axis.lines:
            assert axis.get_yscale() == "log" and axis.get_xscale() == "log"
    for container, name in zip(figure.axes[0].containers, table.encodings, strict=True):
        widths[name] = container[0].get_linewidth()
    assert widths["alibi"] > widths["rope"]
    titles = {f"forward and backward, {backend}" for backend in get_args(Backend)}
    times = [axis for axis in figure.axes if axis.get_ylabel().startswith("time, ms")]
    backends = [axis for axis in times if axis.get_title(loc="left") in titles]
    assert len(backends) > 1 and len({axis.get_ylim() for axis in backends}) == 1


@pytest.mark.slow
def test_cost_is_drawn_against_quality_and_no_name_is_on_another(report: Path) -> None:
    tables = read_tables(report)
    (timed,) = (table for table in tables if table.about.measures_time)
    (quality,) = find_quality(timed, tables)
    timed, quality = (replace(one, means=one.means.assign(mean=1.0)) for one in (timed, quality))
    figure = draw_tradeoff(timed, [quality])  # both encodings are at one place
    (axis,) = (axis for axis in figure.axes if axis.get_visible())
    names = [text for text in axis.texts if text.get_text() in quality.encodings]
    assert sorted(text.get_text() for text in names) == sorted(quality.encodings)
    first, second = (text.get_window_extent() for text in names)
    assert not first.overlaps(second)
    (legend,) = figure.legends
    assert "best baseline" in [text.get_text() for text in legend.get_texts()]
    assert quality.learned("rope") == 0
    points = [line for line in axis.lines if line.get_marker() in ("s", "^")]
    in_legend = [line for line in legend.get_lines() if line.get_marker() in ("s", "^")]
    assert [line.get_markerfacecolor() for line in points] == ["white"] * 2
    assert [line.get_markerfacecolor() for line in in_legend].count("white") == 0


@pytest.mark.slow
def test_records_say_where_times_are_from(report: Path) -> None:
    paths = [*(report / "runs").glob("efficiency*/*/*/run.json")]
    records = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    assert len(records) == 2
    for record in records:
        assert record["measures_time"] is True
        assert set(record["settings"]["conditions"]) == {"device", "threads", "torch", "code"}
        assert {"clock", "driver", "cuda", "cudnn"} <= set(record["environment"])
        assert record["environment"]["threads"] == record["settings"]["conditions"]["threads"]


def test_the_decoder_is_measured_beside_what_is_installed() -> None:
    decoders: Any = load_script("benchmarks/decoders.py")
    sizes = {"layers": 1, "heads": 2, "width": 16, "mlp-width": 16, "length": 8, "repeats": 3}
    args = decoders.parse([f"--{name}={size}" for name, size in sizes.items()])

    def refuse(_: Any) -> None:
        raise ImportError("not here")

    decoders.LIBRARIES = {"pe-bench": decoders.ours, "again": decoders.ours, "other": refuse}
    steps, missing = decoders.make_steps(args)
    assert missing == {"other": "ImportError: not here"}
    times = decoders.measure(steps, args)
    assert {name: len(seconds) for name, seconds in times.items()} == {"pe-bench": 3, "again": 3}
    rows = decoders.describe_times(steps, times).splitlines()
    assert "1.000 (1.000 to 1.000)" in rows[2] and rows[3].startswith("| again")
