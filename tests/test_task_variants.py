"""What tasks make, declare and count with options that differ from those of preset quick.

`task_variants.json` contains, for each task and some specs, its declarations, digests of its
batches and items, and sums over the rows of a model that makes mistakes. The model fails on some
items only, at different tokens, and on different items at each point. An intended change of a task
changes its entry:

    PYTHONPATH=. python tests/test_task_variants.py                  # or only some tasks: copying
"""

import json
import math
import sys
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Memory, Oracle, make_task
from test_numbers import alike, sha256
from torch import Tensor

from pe_bench.config import IGNORE
from pe_bench.errors import InputError
from pe_bench.registry import catalogue, plugins
from pe_bench.results.measurement import Measurement
from pe_bench.sequences import length_generalization
from pe_bench.sequences.length_generalization import LengthGeneralizationTask
from pe_bench.task import Batch, Task
from pe_bench.tasks.perplexity import key_tokens
from pe_bench.tasks.scrolls import answers, baselines, miniature, multiple_choice, text_metrics
from pe_bench.tasks.scrolls.documents import write_split
from pe_bench.tasks.scrolls.subsets import SUBSETS
from pe_bench.tasks.scrolls.task import Scrolls
from pe_bench.text.tokenizer import Tokenizer

FILE = Path(__file__).with_name("task_variants.json")
Record = dict[str, Any]

TEXT = "the häd of a layer cöpies tokens from far away and the rest of it is ∑ noise"
DECLARED = ("efficiency", "properties")
"""Tasks that are not measured here: one takes the time of calls, the other checks an encoding."""

LOCAL = ("folder", "tokenizer_fingerprint")  # entries of the provenance
SMALL = {"samples": 5, "gate": 30.0}
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "addition": [{"digits": 2}, {"digits": 1, "protocol": "paper"}],
    "chained-facts": [
        {"hops": 3, "stories": 3, "moves": 2, "train": {"length": 97}, "subsets": ("two-hop",)},
        {"hops": 2, "stories": 2, "lengths": "80+200", "train": {"length": 96}},
    ],
    "copying": [
        {
            "min_symbols": 1,
            "max_train_symbols": 2,
            "symbols": 3,
            "subsets": ("rsc2x", "mcrv"),
            "samples": 4,
        },
        {"max_train_symbols": 4, "symbols": 9, "protocol": "paper", "subsets": ("rdc", "cmc2x")},
    ],
    "efficiency": [{"shortest": 300, "longest": 2500, "models": "all", "new_tokens": 9}],
    "flipflop": [{"pairs": 6, "times": 4}],
    "indexing": [{"min_symbols": 3, "max_train_symbols": 6, "reach": 2, "questions": 2}],
    "mqar": [
        {"length": 32, "vocabulary": 256, "subsets": ("grid",), "samples": 2},
        {"subsets": ("gap",)},
    ],
    "multi-addition": [
        {"digits": 2, "operands": 2, "scratchpad": False},
        {"digits": 1, "operands": 3},
    ],
    "multiplication": [{"digits": 3}],
    "passkey": [
        {"kinds": "all", "depths": "0.25+0.9", "lengths": "110+170", "train": {"length": 120}},
        {"zero_shot": True, "depths": "0.5", "samples": 1, "train": {"length": 500}},
    ],
    "perplexity": [
        {"corpus": "code", "test": "pg19+code", "stride": 3, "windows": 5},
        {"corpus": "pg19", "lengths": "8+16+40", "protocol": "paper", "tokenizer": "bpe:300"},
    ],
    "posgen": [{"max_train_numbers": 10, "modulus": 7, "near": 2, "far": 2, "subsets": "all"}],
    "probes": [{"subsets": "all", "samples": 3}],
    "properties": [{}],
    "recall": [{"kinds": "nth+two-token+reverse", "words": 70, "samples": 3}],
    "ruler": [
        {
            "kinds": "all",
            "needles": 4,
            "lengths": "128+135",
            "train": {"length": 128},
            "samples": 3,
        },
        {
            "kinds": "niah-multivalue+vt",
            "curriculum": False,
            "lengths": "98+150",
            "train": {"length": 98},
        },
    ],
    "scrolls": [
        {"answer_tokens": 6, "summary_tokens": 12, "items": 3},
        {"answer_tokens": 5, "summary_tokens": 9, "protocol": "paper", "subsets": ("qmsum",)},
        {"items": 2, "gate": 20.0, "builtin": True, "subsets": ("quality",)},
    ],
    "selective-copy": [{"blanks": 5, "tokens": 7, "symbols": 4}],
    "state-tracking": [
        {"max_train_symbols": 6, "modulus": 3, "points": 2, "subsets": "all"},
        {"max_train_symbols": 5, "points": 3, "dense": False, "subsets": ("group",)},
    ],
}
EVERYDAY = {("perplexity", 0)}
CASES = [
    pytest.param(name, number, marks=() if (name, number) in EVERYDAY else pytest.mark.slow)
    for name, specs in VARIANTS.items()
    for number in range(len(specs))
]


def make(name: str, number: int, folder: Path) -> Task:
    """Return the task of a variant; a task on text reads small files."""
    given = dict(VARIANTS[name][number])
    zero_shot = given.pop("zero_shot", False)
    cls: type[Task] = plugins.load("task", name).cls
    if given.get("subsets") == "all":
        given["subsets"] = cls.all_subsets
    train = {"batch_size": 7, "steps": 100, **given.pop("train", {})}
    if name == "perplexity":
        given["data"] = write_corpora(folder / "texts")
        train["length"] = 16
    elif name == "scrolls":
        train |= {"batch_size": 3, "length": 64}
        if not given.pop("builtin", False):
            given["data"] = write_documents(folder / "documents")
            train["length"] = 140
    elif name not in DECLARED:
        given = {**SMALL, **given}
    task = make_task(cls, folder, train=train, **given)
    if not zero_shot:
        return task
    start = make("perplexity", 0, folder)
    start = type(start).make(replace(start.context, hold_out=True), **start.options)
    context = replace(task.context, start=start)
    return cls.make(context, **{**task.options, "vocabulary": "tokenizer"})


def write_corpora(folder: Path) -> Path:
    """Write two corpora; words recur in a document, and some are not ASCII."""
    known = TEXT.split()
    for corpus, name in enumerate(("pg19", "code")):
        for split, sizes in (("train", (9000, 700, 8000)), ("test", (390, 64, 600, 63))):
            (folder / name / split).mkdir(parents=True, exist_ok=True)
            for number, size in enumerate(sizes):
                words = [known[(i * i + corpus * i + number * 5) % len(known)] for i in range(size)]
                text = " ".join(words).encode()[:size].decode(errors="ignore")
                (folder / name / split / f"{number}.txt").write_text(text, encoding="utf-8")
    return folder


def write_documents(folder: Path) -> Path:
    """Write documents in the layout of SCROLLS, two questions about each."""
    for name in ("quality", "narrative_qa", "qmsum"):
        for split, count in (("train", 10), ("validation", 6)):
            rows = miniature.rows(SUBSETS[name].miniature, split, count, 90, questions=2)
            if name == "narrative_qa":  # a second reference
                rows += [{**row, "output": f"the öld {row['output']}"} for row in rows]
            write_split(folder / name / f"{split}.jsonl", rows)
    return folder


class Losses:
    """A model whose losses depend on the last tokens and on their positions."""

    lm_head = SimpleNamespace(weight=torch.zeros(1))

    def __init__(self, consistent: bool, scale: int) -> None:
        self.scale = scale
        self.encoding = SimpleNamespace(prefix_consistent=consistent, needs_final_length=False)
        self.length = 0 if consistent else 1

    def token_losses(self, tokens: Tensor, targets: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1]) + self.length * tokens.shape[1]  # (T,)
        return (1 + (3 * tokens + 7 * targets + 5 * places) % 11) / self.scale  # (B, T)


def answer_documents(patch: pytest.MonkeyPatch, task: Scrolls, subset: str) -> list[Any]:
    """Replace generation: some answers are references, others are cut. Return the questions."""
    asked: list[Any] = []
    splits = task.questions.splits(subset)
    records = [r for split in splits for r in task.questions.records(subset, split)]

    def generate(model: None, prompts: list[list[int]], **how: Any) -> list[list[int]]:
        written = []
        for prompt in prompts:
            output = records[len(asked)].outputs[-1]
            text = output if len(asked) % 3 else output.partition(" ")[2]
            ids = task.variant.tokenizer.encode(f" {text} ").tolist()
            written.append(ids[: how["max_new_tokens"]])
            asked.append([prompt, str(how)])
        return written

    def log_likelihoods(model: None, prompt: list[int], outputs: list[list[int]]) -> list[float]:
        return [-float(sum(output) * len(prompt) % 101) for output in outputs]

    patch.setattr(answers, "generate", generate)
    patch.setattr(multiple_choice, "log_likelihoods", log_likelihoods)
    return asked


def oracle(task: LengthGeneralizationTask, *, limited: bool = False) -> Oracle:
    """Return a model that knows the items and makes mistakes in about half of them.

    A limited one has too few positions for far lengths, and its outputs depend on later tokens.
    """
    known: dict[tuple[int, ...], list[int]] = {}
    for subset in task.subsets:
        for point in task.eval_points(subset):
            tokens, targets = task.items(subset, point).batch()
            rows = zip(tokens.tolist(), targets.tolist(), strict=True)
            for number, (row, wanted) in enumerate(rows):
                scored = [column for column, target in enumerate(wanted) if target != IGNORE]
                written = [max(target, 0) for target in wanted]
                place = zlib.crc32(f"{subset} {point.length} {point.second_axis} {number}".encode())
                if place % 2:
                    wrong = scored[place // 2 % len(scored)]
                    written[wrong] = 1 + written[wrong] % (task.vocabulary.vocab_size - 1)
                key = row[: scored[0] + 1] if task.autoregressive else row
                known[trimmed(key)] = written
    lengths = sorted({len(key) for key in known}, reverse=True)

    def answer(given: list[int]) -> list[int]:
        for length in lengths:
            if (key := tuple(given[:length])) in known:
                return known[key]
        return known[trimmed(given)]

    # Task ruler scores generated text.
    consistent = not limited and task.name != "ruler"
    size = task.vocabulary.vocab_size
    model = Oracle(answer, vocab_size=size, prefix_consistent=consistent)
    if limited:
        model.encoding.max_position = task.max_eval_tokens
    return model


def make_models(task: Task) -> list[Any]:
    """Return the models to measure."""
    if isinstance(task, LengthGeneralizationTask):
        has_far = task.max_far_tokens > task.max_eval_tokens
        return [oracle(task), oracle(task, limited=True)] if has_far else [oracle(task)]
    if isinstance(task, Scrolls):
        return [None]  # `answer_documents` answers
    return [Losses(True, 30), Losses(False, 5)]


def trimmed(row: Sequence[int]) -> tuple[int, ...]:
    """Return a row without its padding."""
    end = max((index + 1 for index, token in enumerate(row) if token), default=0)
    return tuple(row[:end])


def batches(task: Task) -> Record:
    """Return digests of batches from all parts of training, and of batches for other purposes."""
    tuned = type(task).make(replace(task.context, hold_out=True), **task.options)
    found: dict[str, list[Batch]] = {"batches": [], "held out": [], "for baselines": []}
    for phase in task.subsets if task.trains_each_subset else (None,):
        for step in (0, 15, task.train.steps - 1):
            found["batches"].append(task.batch(phase, 3, step))
        found["held out"] += [tuned.batch(phase, 3, 4), tuned.held_out_batch(phase, 2)]
        if isinstance(task, LengthGeneralizationTask):
            found["for baselines"].append(task.baseline_batch(phase, 2))
    digests = {}
    for name, each in found.items():
        digests[name] = sha256([[tokens.tolist(), targets.tolist()] for tokens, targets in each])
    return digests


def sums(rows: Sequence[Measurement]) -> Record:
    """Return digests of the places of rows and weighted sums of their numbers, by metric."""
    found: Record = {}
    for metric in dict.fromkeys(row.metric for row in rows):
        some = [row for row in rows if row.metric == metric]
        entry: list[Any] = [len(some), sha256(list(map(place, some)))]
        for name in ("value", "stderr", "ci_low", "ci_high"):
            entry.append(weighted([getattr(row, name) for row in some]))
        found[metric] = entry
    return found


def weighted(numbers: Sequence[float]) -> float:
    """Return a sum that changes if two numbers change places."""
    total = 0.0
    for index, number in enumerate(numbers):
        total += (1 + index % 7) * (-1.0 if math.isnan(number) else number)
    return round(total, 4)


def record(name: str, number: int, folder: Path) -> Record:
    """Return what a task declares, makes and counts."""
    task = make(name, number, folder)
    found: Record = {
        "labels": [task.data_label, task.gate, *task.subsets, *task.all_subsets],
        "fingerprint": fingerprint(task),
        "axes": [*task.axes.values(), *map(str, task.metrics.values())],
        "headline": [task.headline.metric, task.headline.subset],
        "lengths": [task.length if task.train.length else None, task.train_length],
        "longest": [task.max_train_axis, task.max_eval_tokens, task.max_far_tokens],
        "sequences in evaluation": sorted((task.evaluation_sequences() or {}).items())[-3:],
        "views": sha256([str(view) for view in task.views]),
        "origin": sha256({k: v for k, v in task.provenance().items() if k not in LOCAL}),
        "vocabulary": vocabulary(task),
        **batches(task),
    }
    if isinstance(task, LengthGeneralizationTask):
        points = [[subset, *point] for subset in task.subsets for point in task.eval_points(subset)]
        found["points"] = [len(points), sha256(points)]
    if name not in DECLARED:
        found |= measured_rows(task)
    plain: Record = json.loads(json.dumps(found))
    return plain


def measured_rows(task: Task) -> Record:
    """Return what models and baselines score, with and without some rows."""
    found: Record = {}
    for number, model in enumerate(make_models(task)):
        measured: list[Measurement] = []
        some: list[Measurement] = []  # as if other subsets or points could not be measured
        notes: list[str] = []
        for subset in task.subsets:
            with pytest.MonkeyPatch.context() as patch:
                asked = answer_documents(patch, task, subset) if isinstance(task, Scrolls) else []
                evaluation = task.evaluate(model, subset, 1, Memory())
            if not some:
                left_out = 2 if isinstance(task, LengthGeneralizationTask) else 0
                some = evaluation.rows[: len(evaluation.rows) - left_out]
            measured += evaluation.rows
            notes += [*evaluation.notes, sha256(asked)]
        found[f"notes {number}"] = sha256(notes)
        found[f"rows {number}"] = sums(measured)
        found[f"summary {number}"] = sums(task.summarize(measured))
        found[f"summary of some {number}"] = sums(task.summarize(some))
    baseline_rows = task.baselines()
    found["rows of baselines"] = sha256([list(map(place, rows)) for rows in baseline_rows.values()])
    found["baselines"] = {
        name: weighted([row.value + row.stderr for row in rows if row.stderr == row.stderr])
        for name, rows in baseline_rows.items()
    }
    return found


def fingerprint(task: Task) -> str:
    """Return the fingerprint without that of a tokenizer, whose file depends on its library."""
    tokenizer = task.vocabulary
    if not isinstance(tokenizer, Tokenizer):
        return task.fingerprint
    return task.fingerprint.replace(tokenizer.fingerprint, tokenizer.name)


def vocabulary(task: Task) -> list[Any]:
    ids = task.vocabulary
    return [ids.vocab_size, sha256([ids.digit_ids, ids.separator_ids])]


def place(row: Measurement) -> list[Any]:
    return [row.subset, row.metric, row.length, row.second_axis, row.n, row.status]


def differences(old: Record, new: Record) -> list[str]:
    """Return the names of entries that differ."""
    return [name for name in {**old, **new} if not equal_in(old.get(name), new.get(name))]


def equal_in(old: Any, new: Any) -> bool:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return not differences(dict(old), dict(new))
    return alike(old, new)


def small_baselines(patch: pytest.MonkeyPatch) -> None:
    """Fit baselines to a few rows and windows, and let them guess twice."""
    patch.setattr(length_generalization, "BASELINE_ROWS", 20)
    patch.setattr(key_tokens, "CALIBRATION_WINDOWS", 9)
    patch.setattr(baselines, "GUESSES", 2)
    patch.setattr(text_metrics, "_rouge", overlaps)  # the library takes half a second to import


def overlaps(pairs: Sequence[tuple[str, Sequence[str]]]) -> Any:
    """Return three scores of each answer, from 0 to 1, that stand for those of ROUGE."""
    found = []
    for answer, texts in pairs:
        words = {*answer.split()}
        shared = max(len(words.intersection(text.split())) for text in texts)
        found.append([shared / (size + len(words)) for size in (1, 2, 4)])
    return np.array(found)


@pytest.mark.parametrize(("name", "number"), CASES)
def test_variants_are_what_they_were(
    name: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_baselines(monkeypatch)
    stored = json.loads(FILE.read_text(encoding="utf-8"))[name][number]
    assert differences(stored, record(name, number, tmp_path)) == []


def test_every_task_has_variants() -> None:
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    assert {name: len(each) for name, each in stored.items()} == {
        name: len(each) for name, each in VARIANTS.items()
    }
    assert [*VARIANTS] == catalogue.names("task")


@pytest.mark.parametrize("name", VARIANTS)
def test_a_length_is_needed(name: str, tmp_path: Path) -> None:
    cls = plugins.load("task", name).cls
    if cls.presets["quick"].train.length:
        with pytest.raises(InputError, match=rf"^{name} needs a number of tokens as --train\.l"):
            _ = make_task(cls, tmp_path, train={"length": None}).length


def write(names: Sequence[str]) -> None:
    """Write the entries of some tasks again, or of all."""
    stored = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        small_baselines(patch)
        for name in names or VARIANTS:
            numbers = range(len(VARIANTS[name]))
            stored[name] = [record(name, number, Path(folder, name)) for number in numbers]
    kept = {name: stored[name] for name in VARIANTS}
    lines = []
    for name, records in kept.items():
        entries = [",\n".join(f'  "{k}": {json.dumps(v)}' for k, v in r.items()) for r in records]
        lines.append(f' "{name}": [' + ", ".join(f"{{\n{entry}\n }}" for entry in entries) + "]")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    write(sys.argv[1:])
