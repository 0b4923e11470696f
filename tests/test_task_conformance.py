"""Every task satisfies the interface: batches, items, means, baselines, settings.

The tests are written once against `Task`, or against `LengthGeneralizationTask`, and run on every
task in the folder. Separate files test the details of single tasks.
"""

import json
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Oracle, check_items, make_task, measure, some_slow
from torch import Tensor

from pe_bench.checks.task_subject import TaskSubject
from pe_bench.checks.tasks import examine
from pe_bench.config import IGNORE
from pe_bench.decoder.model import Decoder
from pe_bench.encoding import Encoding
from pe_bench.errors import InputError
from pe_bench.registry import catalogue, plugins
from pe_bench.registry.options import plugin_options
from pe_bench.results.items import Items
from pe_bench.results.journal import Journal
from pe_bench.results.measurement import Measurement
from pe_bench.results.metrics import METRICS
from pe_bench.results.splits import FAR, ID, OOD
from pe_bench.results.views import Column, Curve
from pe_bench.runs.options import RunOptions
from pe_bench.runs.resolve import ResolvedTask, resolve
from pe_bench.sequences.baselines import BASELINES
from pe_bench.sequences.eval_points import EvalPoint
from pe_bench.sequences.length_generalization import LengthGeneralizationTask
from pe_bench.sequences.rows import PAD
from pe_bench.sequences.scoring import Scores
from pe_bench.task import Task, Vocabulary

TASKS = catalogue.names("task")
CLASSES: dict[str, type[Task]] = {name: plugins.load("task", name).cls for name in TASKS}
SYNTHETIC = [n for n, cls in CLASSES.items() if issubclass(cls, LengthGeneralizationTask)]
QUICK = {*TASKS} - {"scrolls"}  # which reads documents
MEASURED = [name for name in TASKS if name != "scrolls"]
TINY = {"layers": 1, "heads": 2, "width": 16, "mlp_width": 16}
SMALL = {"efficiency": ":shortest=16,longest=32"}
EVERY_KIND: dict[str, dict[str, Any]] = {
    "chained-facts": {"hops": 3, "stories": 2, "train": {"length": 128}},
    "passkey": {"kinds": "all"},
    "recall": {"kinds": "all"},
    "ruler": {"kinds": "all", "needles": 4, "train": {"length": 128}},
}
"""What gives a task all of its subsets."""

SCALES = ("quick", "small", "mid", "paper")
PRESETS = [
    (name, preset)
    for name in SYNTHETIC
    for preset, content in CLASSES[name].presets.items()
    if content.starts_from is None  # others may need a download
]

# Number of different tokens in answers, in preset quick.
SYMBOLS = {
    "addition": 11,
    "chained-facts": 16,
    "copying": 21,
    "flipflop": 2,
    "indexing": 32,
    "mqar": 64,
    "multi-addition": 12,
    "multiplication": 11,
    "passkey": 10,
    "posgen": 11,
    "probes": 16,
    "recall": 128,
    "ruler": 32,
    "selective-copy": 17,
    "state-tracking": 2,
}


def stage(name: str, tmp_path: Path, few: int = 2, **train: int) -> ResolvedTask:
    """Return a task with its quick preset, a tiny model and `few` items of a kind."""
    options = RunOptions(cache=tmp_path, train=train, model=TINY)
    known = [option.name for option in plugin_options(CLASSES[name])]
    size = next((f":{option}={few}" for option in ("samples", "windows") if option in known), "")
    size = size or SMALL.get(name, "")
    return resolve(options, f"{name}{size}")


def synthetic(name: str, tmp_path: Path, **options: Any) -> LengthGeneralizationTask:
    made = make_task(CLASSES[name], tmp_path, **options)
    assert isinstance(made, LengthGeneralizationTask)
    return made


def whole(name: str, tmp_path: Path, **options: Any) -> LengthGeneralizationTask:
    """Return a synthetic task with all of its subsets."""
    subsets = None if name in EVERY_KIND else CLASSES[name].all_subsets
    return synthetic(name, tmp_path, subsets=subsets, **EVERY_KIND.get(name, {}), **options)


def cells_of(task: LengthGeneralizationTask) -> list[tuple[str, EvalPoint]]:
    return [(subset, cell) for subset in task.subsets for cell in task.eval_points(subset)]


def place(row: Measurement) -> tuple[str, str, int | None, str]:
    return row.subset, row.metric, row.length, row.second_axis


def phases(task: Task) -> Sequence[str | None]:
    """Return the arguments of `batch` for each training phase."""
    return task.subsets[:2] if task.trains_each_subset else [None]


def rows_of(tokens: Tensor) -> set[bytes]:
    return {np.trim_zeros(row, "b").tobytes() for row in tokens.numpy()}


# Batches.


@pytest.mark.parametrize("name", some_slow(TASKS, QUICK))
def test_batches_are_a_pure_function_of_seed_and_step(name: str, cache_folder: Path) -> None:
    made = stage(name, cache_folder)
    for subset in phases(made.task):
        first = made.task.batch(subset, 1, 7)
        again = stage(name, cache_folder).task.batch(subset, 1, 7)
        assert torch.equal(first.tokens, again.tokens)
        assert torch.equal(first.targets, again.targets)
        assert first.tokens.shape == first.targets.shape and first.tokens.dtype == torch.long
        assert first.tokens.shape[1] <= made.task.train_length
        scored = first.targets[first.targets != IGNORE]
        for ids in (first.tokens, scored):
            assert ids.numel() and int(ids.min()) >= 0 and int(ids.max()) < made.model.vocab_size
        assert (first.targets != IGNORE).any(1).all()  # every row has something to learn
        others = [made.task.batch(subset, 1, 8), made.task.batch(subset, 2, 7)]
        if made.train.steps:
            assert not any(torch.equal(first.tokens, other.tokens) for other in others)


@pytest.mark.parametrize("name", SYNTHETIC)
def test_held_out_batches_are_fresh_draws(name: str, tmp_path: Path) -> None:
    task = whole(name, tmp_path, samples=2)
    for subset in phases(task):
        first = task.held_out_batch(subset, 0)
        assert torch.equal(first.tokens, task.held_out_batch(subset, 0).tokens)
        assert first.tokens.shape[1] <= task.train_length
        held_out = rows_of(first.tokens)
        assert held_out != rows_of(task.held_out_batch(subset, 1).tokens)
        last = max(task.train.steps - 1, 0)
        trained = rows_of(task.batch(subset, 0, last).tokens)
        assert rows_of(task.held_out_batch(subset, last).tokens) != trained
        assert len(held_out & trained) <= len(held_out) / 2  # some short rows recur by chance


# Evaluation.


@pytest.mark.parametrize(
    "name",
    some_slow(MEASURED, everyday={*TASKS} - {"efficiency", "passkey", "perplexity", "properties"}),
)
def test_an_untrained_model_can_be_measured(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[torch.Size] = []  # through a model
    hidden = Decoder.hidden

    def watch(self: Decoder, tokens: Tensor, *args: Any, **more: Any) -> Tensor:
        sent.append(tokens.shape)
        return hidden(self, tokens, *args, **more)

    monkeypatch.setattr(Decoder, "hidden", watch)
    few = 8 if name == "perplexity" else 2  # one in 17 tokens is a key token
    made = stage(name, tmp_path, few)
    model = made.make_model(plugins.load("encoding", "nope"), 0).eval()
    measured = []
    items: list[Items] = []
    for subset in made.task.subsets:
        journal = tmp_path / "journals" / subset
        with torch.inference_mode():
            found = made.task.evaluate(model, subset, 0, Journal(journal))
            assert made.task.evaluate(model, subset, 0, Journal(journal)) == found  # resumed
        measured += found.rows
        items += found.items
    rows = [*measured, *made.task.summarize(measured)]
    assert measured and all(row.n > 0 and row.value == row.value for row in rows)
    assert not any(row.ci_low > row.value or row.ci_high < row.value for row in rows)
    if name not in ("efficiency", "properties"):  # these have no items
        check_items(rows, items, tmp_path)
    keys = [(row.subset, row.metric, row.length, row.second_axis) for row in rows]
    assert len(keys) == len(set(keys))  # each number once
    there = {(row.subset, row.metric) for row in rows}
    assert (made.task.headline.subset, made.task.headline.metric) in there
    left_out = set(made.task.all_subsets) - set(made.task.subsets)
    of_these = {f"{name}{end}" for name in left_out for end in ("", f"-{ID}", f"-{OOD}")}
    for view in made.task.views:
        if made.task.measures_time and isinstance(view, Curve):
            continue  # a backend may not run on this machine
        assert (view.subset, view.metric) in there or view.subset in of_these
    assert made.task.summarize([]) == []
    planned = made.task.evaluation_sequences()
    if planned is not None:
        assert sum(planned.values()) == sum(rows for rows, _ in sent)
        most = sum(length * count for length, count in planned.items())
        # Rows of up to 1.2 times the length share a pass.
        assert most / 2 < sum(rows * length for rows, length in sent) <= 1.2 * most


@pytest.mark.parametrize(
    "name", some_slow([*SYNTHETIC, "perplexity"], everyday=("flipflop", "ruler"))
)
def test_logits_that_are_not_finite_are_no_wrong_answers(name: str, tmp_path: Path) -> None:
    made = stage(name, tmp_path, 8 if name == "perplexity" else 2)
    task, model = made.task, made.model
    limit = task.train_length
    if isinstance(task, LengthGeneralizationTask):
        limit = max(task.max_tokens(*each) for each in cells_of(task) if each[1].split == ID)

    class Overflows(Encoding):
        shift_invariant = True

        def distance_bias(self, distances: Tensor) -> Tensor:
            bias = torch.where(distances < limit, 0.0, math.nan)  # (distances,)
            return bias.expand(self.model.heads, -1)

    torch.manual_seed(0)
    overflows = Decoder(model, Overflows).eval()
    nope = made.make_model(plugins.load("encoding", "nope"), 0).eval()
    lost = False
    for subset in task.subsets:
        with torch.inference_mode():
            right = task.evaluate(nope, subset, 0, Journal(tmp_path / "right" / subset))
            found = task.evaluate(overflows, subset, 0, Journal(tmp_path / "lost" / subset))
        numbers = {place(row): row.value for row in right.rows}
        measured = [row for row in found.rows if not math.isnan(row.value)]
        assert all(numbers[place(row)] == pytest.approx(row.value) for row in measured)
        said = [note for note in found.notes if "logits are NaN or infinite" in note]
        assert bool(said) == (len(measured) < len(numbers))
        lost |= bool(said)
    assert lost == (task.max_eval_tokens > limit)


def knowing(task: LengthGeneralizationTask, **options: Any) -> Oracle:
    """Return a model that knows the answer to every item, from its prompt or the whole row."""
    known: dict[tuple[int, ...], list[int]] = {}
    for subset, cell in cells_of(task):
        for row, targets in zip(*map(Tensor.tolist, task.items(subset, cell).batch()), strict=True):
            written = [0 if target == IGNORE else target for target in targets]
            first = next(i for i, target in enumerate(targets) if target != IGNORE)
            known[tuple(row[: first + 1]) if task.autoregressive else trimmed(row)] = written
    prompts = sorted({len(key) for key in known})

    def answer(given: list[int]) -> list[int]:
        if not task.autoregressive:
            return known[trimmed(given)]
        return next(known[key] for n in prompts if (key := tuple(given[:n])) in known)

    return Oracle(answer, vocab_size=task.vocabulary.vocab_size, **options)


def trimmed(row: list[int]) -> tuple[int, ...]:
    return tuple(np.trim_zeros(np.array(row), "b").tolist())


@pytest.mark.slow
@pytest.mark.parametrize("name", SYNTHETIC)
def test_right_answers_count_and_wrong_ones_do_not(name: str, tmp_path: Path) -> None:
    task = whole(name, tmp_path, samples=2)
    consistent = name != "ruler"  # ruler scores generated text
    right = measure(task, knowing(task, prefix_consistent=consistent), tmp_path / "right")
    silent = Oracle(lambda _: [], vocab_size=task.vocabulary.vocab_size)
    wrong = measure(task, silent, tmp_path / "wrong")
    expected = {
        (s, m, c.length, c.second_axis) for s, c in cells_of(task) for m in task.point_metrics
    }
    for rows, value in ((right, 100), (wrong, 0)):
        assert {(r.subset, r.metric, r.length, r.second_axis) for r in rows} == expected
        assert {row.value for row in rows} == {value}
    for row in right:
        items = task.items(
            row.subset, EvalPoint(row.length or 0, row.second_axis, split_of(task, row))
        )
        assert row.n == (items.scored.sum() if row.metric == "accuracy" else len(items))
    learned = {row.status for row in task.summarize(right)}
    missed = {row.status for row in task.summarize(wrong) if row.subset in (OOD, FAR)}
    assert (learned, missed) == ({"ranked"}, {"not_learned"})
    longest = {row.value for row in task.summarize(right) if row.metric == "effective_length"}
    assert max(longest) == max(cell.length for _, cell in cells_of(task) if cell.split != FAR)
    assert {r.value for r in task.summarize(wrong)} == {0}


def split_of(task: LengthGeneralizationTask, row: Measurement) -> str:
    cells = {(cell.length, cell.second_axis): cell.split for cell in task.eval_points(row.subset)}
    return cells[row.length or 0, row.second_axis]


def is_right(subset: str, cell: EvalPoint) -> bool:
    """Return whether a hypothetical model solves a point: half of them, by a checksum of names."""
    return zlib.crc32(f"{subset} {cell.length} {cell.second_axis}".encode()) % 2 == 0


def scored(task: LengthGeneralizationTask) -> Iterator[Measurement]:
    """Yield the rows of a model that solves half of the points."""
    for subset, cell in cells_of(task):
        values = np.full(3, int(is_right(subset, cell)))
        for items in task.measure(subset, cell, Scores(values, values * 0 + 1, values, values)):
            yield items.row()


@pytest.mark.parametrize("name", SYNTHETIC)
def test_means_are_those_of_the_cells_that_name_them(name: str, tmp_path: Path) -> None:
    task = whole(name, tmp_path, samples=2)
    groups: dict[tuple[str, int | None], list[float]] = {}
    for subset, cell in cells_of(task):
        names = {*cell.groups, cell.split} - {""}
        if task.averages_each_subset and cell.split:
            names.add(f"{subset}-{cell.split}")
        places: list[tuple[str, int | None]] = [(each, None) for each in names]
        if cell.curve:
            places.append((cell.curve, cell.length))
        for place in places:
            groups.setdefault(place, []).append(100.0 * is_right(subset, cell))
    rows = [row for row in task.summarize([*scored(task)]) if not row.second_axis]
    for metric in task.point_metrics:
        found = {(row.subset, row.length): row.value for row in rows if row.metric == metric}
        assert found == {place: pytest.approx(np.mean(group)) for place, group in groups.items()}


# Declarations of a task.


@pytest.mark.parametrize("name", some_slow(TASKS, QUICK))
def test_what_a_task_declares(name: str, cache_folder: Path) -> None:
    made = stage(name, cache_folder)
    task = made.task
    assert {*SCALES} <= set(type(task).presets)
    assert set(task.axes) == {"length", "second"} and "strict" in task.protocols
    assert task.max_eval_tokens >= task.train_length >= 1 and task.max_train_axis > 0
    assert task.provenance()["label"] == task.data_label
    metric = task.metrics.get(task.headline.metric) or METRICS[task.headline.metric]
    assert metric.higher_is_better is not None
    assert any(isinstance(view, Column) for view in task.views)
    doc = catalogue.describe("task", name)
    assert 20 < len(doc) <= 100 and doc.endswith(".")


@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_presets_have_cells_of_both_splits(name: str, preset: str, tmp_path: Path) -> None:
    task = synthetic(name, tmp_path, preset=preset, samples=1)
    cells = cells_of(task)
    places = [(subset, cell.length, cell.second_axis) for subset, cell in cells]
    assert len(places) == len({*places})
    trained = [cell.length for _, cell in cells if cell.split == ID]
    assert trained and any(cell.split == OOD for _, cell in cells)
    assert max(trained) <= task.max_train_axis
    if not task.trains_each_subset or task.subsets == task.all_subsets:
        assert max(trained) == task.max_train_axis
    assert task.train.steps > 0 and task.train.batch_size > 0
    assert task.presets[preset].model is not None


@pytest.mark.parametrize("name", some_slow(TASKS, QUICK))
def test_settings_survive_their_label_and_json(name: str, cache_folder: Path) -> None:
    made = stage(name, cache_folder)
    options = RunOptions(cache=cache_folder, model=TINY)
    again = resolve(options, made.label)
    assert (again.label, again.digest()) == (made.label, made.digest())
    kept = json.loads(json.dumps(made.settings, default=str))
    assert kept == json.loads(json.dumps(again.settings, default=str))
    other = resolve(replace(options, model={**TINY, "layers": 2}), made.label)
    if made.task.measures_time or made.train.steps:
        assert other.digest() != made.digest()


@pytest.mark.parametrize("name", SYNTHETIC)
def test_a_synthetic_task_refuses_what_has_no_effect(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{name}:samples must be from 1 to 100000, not 0"):
        stage(name, tmp_path, few=0)
    for gate in (-1.0, 100.5):
        with pytest.raises(InputError, match=f"gate must be a percentage, not {gate}"):
            synthetic(name, tmp_path, gate=gate)
    with pytest.raises(InputError, match=r"makes its own [a-z]+: leave out --data"):
        synthetic(name, tmp_path, data=tmp_path)
    if CLASSES[name].presets["quick"].train.length is None:
        with pytest.raises(InputError, match=r"--train\.length has no effect: .*samples"):
            stage(name, tmp_path, length=999)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TASKS if len(CLASSES[name].all_subsets) > 1])
def test_subsets_that_do_not_exist(name: str, tmp_path: Path) -> None:
    known = resolve(RunOptions(cache=tmp_path), name).task.all_subsets[0]
    with pytest.raises(InputError, match=rf"no subset '{known}x' \(did you mean '{known}'\?\)"):
        resolve(RunOptions(cache=tmp_path, subsets=(f"{known}x",)), name)
    with pytest.raises(InputError, match=f"the subset '{known}' is named twice"):
        resolve(RunOptions(cache=tmp_path, subsets=(known, known)), name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TASKS if len(CLASSES[name].all_subsets) > 1])
def test_the_order_of_subsets_changes_nothing(name: str, tmp_path: Path) -> None:
    known = resolve(RunOptions(cache=tmp_path), name).task.all_subsets[:3]
    found = [
        resolve(RunOptions(cache=tmp_path, subsets=subsets), name)
        for subsets in (known, known[::-1])
    ]
    assert found[0].task.subsets == found[1].task.subsets == known
    assert found[0].digest() == found[1].digest()


@pytest.mark.parametrize("name", some_slow(SYNTHETIC, everyday=("addition", "selective-copy")))
def test_options_of_a_spec_go_before_those_of_the_preset(name: str, tmp_path: Path) -> None:
    """This includes options that equal defaults of the constructor but not of the preset."""
    cls = CLASSES[name]
    for option in plugin_options(cls):
        for preset, content in cls.presets.items():
            if option.name not in content.options or content.starts_from:  # may need a download
                continue
            for value in (option.default, content.options[option.name]):
                try:
                    spec = f"{name}:{option.name}={value}"
                    made = resolve(RunOptions(preset=preset, cache=tmp_path), spec)
                except InputError:  # the default does not go with the preset's other options
                    assert value != content.options[option.name]
                    continue
                assert made.settings["options"][option.name] == value
                other = value != content.options[option.name]
                assert (option.name in made.label) == other


def test_a_task_of_one_line() -> None:
    task = CLASSES["copying"].make(samples=3)
    assert task.subsets == ("copy", "reverse") and task.train == task.presets["quick"].train
    changed = replace(task.context, subsets=("cmc", "rdc"))
    assert CLASSES["copying"].make(changed).subsets == ("replace", "copy")  # as published


# Items.


@pytest.mark.parametrize("name", SYNTHETIC)
def test_the_lengths_of_a_synthetic_task_are_those_of_its_rows(name: str, tmp_path: Path) -> None:
    task = synthetic(name, tmp_path, samples=2)
    cells = cells_of(task)
    tokens = {key: int(task.items(*key).lengths.max()) for key in cells}
    near = [count for (_, cell), count in tokens.items() if cell.split != FAR]
    assert max(near) <= task.max_eval_tokens
    assert max(tokens.values()) <= task.max_far_tokens
    trained = [key for key in cells if key[1].split == ID]
    assert trained and max(tokens[key] for key in trained) <= task.train_length
    assert max(cell.length for _, cell in trained) == task.max_train_axis
    assert isinstance(task.vocabulary, Vocabulary) or task.vocabulary.vocab_size > 256


@pytest.mark.parametrize("name", SYNTHETIC)
def test_items_depend_on_their_cell_alone(name: str, tmp_path: Path) -> None:
    """Items depend neither on the instance nor on earlier calls, and points share no items."""
    task = whole(name, tmp_path, samples=2)
    cells = cells_of(task)
    batches = [task.items(*key).batch() for key in cells]
    again = whole(name, tmp_path, samples=2)
    for key, batch in zip(cells[::-1], batches[::-1], strict=True):
        assert all(map(torch.equal, again.items(*key).batch(), batch))
    large = [batch for batch in batches if batch.tokens.shape[1] > 16]  # small ones may recur
    assert len({batch.tokens.numpy().tobytes() for batch in large}) == len(large)


@pytest.mark.parametrize("name", SYNTHETIC)
def test_items_are_rows_of_ids_with_something_to_score(name: str, tmp_path: Path) -> None:
    task = whole(name, tmp_path, samples=3)
    for subset, cell in cells_of(task):
        items = task.items(subset, cell)
        assert 1 <= len(items) <= task.count(subset, cell) <= 3
        assert items.ids.min() >= 0 and items.ids.max() < task.vocabulary.vocab_size
        assert items.lengths.max() == items.ids.shape[1] and items.scored.any(1).all()
        for row, length in zip(items.ids, items.lengths, strict=True):
            assert (row[length:] == PAD).all()
        tokens, targets = items.batch()
        assert tokens.shape == targets.shape
        assert int((targets != IGNORE).sum()) == items.scored.sum()


@pytest.mark.parametrize("name", SYNTHETIC)
def test_provenance_has_a_digest_of_the_items(name: str, tmp_path: Path) -> None:
    digests = [stage(name, tmp_path, few=n).task.provenance()["items_sha256"] for n in (2, 2, 3)]
    assert digests[0] == digests[1] != digests[2]


# Baselines and the checks of `pe-bench check`.


@pytest.mark.slow
@pytest.mark.parametrize("name", SYNTHETIC)
def test_baselines_have_the_rows_of_a_model(name: str, tmp_path: Path) -> None:
    task = synthetic(name, tmp_path, samples=2)
    found = task.baselines()
    assert tuple(found)[: len(BASELINES)] == BASELINES
    rows = measure(task, Oracle(lambda _: [], vocab_size=task.vocabulary.vocab_size), tmp_path)
    expected = {place(row) for row in [*rows, *task.summarize(rows)]}
    for baseline, some in found.items():
        assert {place(row) for row in some} == expected, baseline
        percent = [row.value for row in some if row.metric != "effective_length"]
        assert all(0 <= value <= 100 for value in percent)
        assert {row.status for row in some} == {"ranked"}
    guessing = found["guessing"]
    assert {row.value for row in guessing if row.metric == "effective_length"} == {0}
    chance = 100 / SYMBOLS[name]
    for row in guessing:
        if row.metric in ("token_accuracy", "accuracy"):
            assert row.value == pytest.approx(chance)
        if row.metric == "exact_match":
            assert row.value <= chance + 1e-9
    headline = (task.headline.subset, task.headline.metric, None, "")
    assert [place(row) for row in guessing].count(headline) == 1


@pytest.mark.slow
@pytest.mark.parametrize("spec", [*TASKS, "recall:kinds=all"])
def test_shipped_tasks_pass_every_check(spec: str, cache_folder: Path) -> None:
    """For example, every shortcut that comes halfway from chance to the ceiling is explained."""
    subject = TaskSubject.of(plugins.load("task", spec, "quick"), cache_folder)
    bad = {name: found.reason for name, found in examine(subject).items() if found.bad}
    assert bad == {}
