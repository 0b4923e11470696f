"""Numbers change only with a version, and digests change only with numbers.

`numbers.json` contains small results of every task, every encoding, the decoder and the training
loop. Each has the digest of the settings or versions that identify runs.

- If a number changes and its digest does not, different results would share a table. The message
  names the version to raise.
- If a digest changes, earlier results no longer share a table with new ones. If this is intended,
  write the file again; the commit shows both.

    PYTHONPATH=. python tests/test_numbers.py                    # or only: "task addition" decoder

This does not write a number that has changed under an unchanged digest.

Processors round differently, so losses of tiny models differ by about 1e-6. TOLERANCE is a hundred
times as large: smaller changes are not detected. Items and batches are integers and must be equal.
"""

import hashlib
import json
import math
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from helpers import KINDS, Oracle, some_slow
from torch import Tensor, nn
from torch.nn import functional as F

from pe_bench import decoder
from pe_bench.config import ModelConfig, TrainConfig
from pe_bench.decoder.generation import Sampling
from pe_bench.decoder.model import Decoder
from pe_bench.encoding import Encoding
from pe_bench.errors import PACKAGE
from pe_bench.registry import catalogue, plugins
from pe_bench.registry.options import plugin_options
from pe_bench.results.identity import digest
from pe_bench.results.journal import Journal
from pe_bench.results.splits import FAR
from pe_bench.runs.options import RunOptions
from pe_bench.runs.resolve import ResolvedTask, resolve
from pe_bench.sequences.length_generalization import LengthGeneralizationTask
from pe_bench.task import Batch, Task
from pe_bench.train.loop import train
from pe_bench.train.optimizer import scale
from pe_bench.train.training_result import VERSION as TRAINING_VERSION
from pe_bench.train.training_setup import Training

FILE = Path(__file__).with_name("numbers.json")
TOLERANCE = 1e-4  # relative
TINY = {"layers": 2, "heads": 2, "width": 32, "mlp_width": 16, "init_std": 0.3}
SHAPE = ModelConfig(
    layers=3,  # some variants need a layer between the first and the last
    heads=2,
    width=32,
    mlp_width=16,
    init_std=0.3,
    vocab_size=32,
    train_length=24,
    digit_ids=(4, 5),
    separator_ids=(6,),
)
STEPS = 2  # batches of each training phase
Record = dict[str, Any]


def write_corpus(folder: Path) -> Path:
    """Write a small corpus (the default one differs between Python versions); return its folder."""
    for part, lines in (("train", 3000), ("test", 300)):
        (folder / part).mkdir(parents=True)
        text = "".join(f"Line {i}: {i * i % 997} and {i % 13}.\n" for i in range(lines))
        (folder / part / "a.txt").write_text(text)
    return folder


def open_task(name: str, corpus: Path, *, small: bool) -> ResolvedTask:
    """Return a task under preset quick, or the same with small batches and evaluations."""
    cls: type[Task] = plugins.load("task", name).cls
    trains = cls.presets["quick"].train.steps > 0
    options = RunOptions(
        cache=corpus / "cache",
        data={"perplexity": corpus},
        train={"batch_size": 4} if small and trains else {},
        model=TINY if small else {},
    )
    values = [f"{key}={value}" for key, value in cls.check_options.items()]
    return resolve(options, ":".join([name, ",".join(values)]) if small and values else name)


def sha256(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def task_record(name: str, corpus: Path) -> Record:
    """Return training batches and items of a task, the scores of a known model, and defaults."""
    resolved = open_task(name, corpus, small=True)
    task = resolved.task
    phases = task.subsets if task.trains_each_subset else (None,)
    batches = []
    for phase in phases if resolved.train.steps else ():
        for step in range(STEPS):
            tokens, targets = task.batch(phase, 0, step)
            batches.append([tokens.tolist(), targets.tolist()])
    provenance = {k: v for k, v in task.provenance().items() if k != "folder"}
    far = provenance.pop("far_items_sha256", None)
    return {
        "digest": open_task(name, corpus, small=False).digest(),
        "batches": sha256(batches),
        "items": sha256(provenance),
        **({"far items": far} if far else {}),
        **scores(resolved, corpus),
        "defaults": option_defaults(type(task)),
    }


def option_defaults(cls: type[Task]) -> dict[str, Any]:
    """Return the defaults of options that a preset does not set, which no digest contains."""
    known = {option.name: option.default for option in plugin_options(cls)}
    given = [preset.options for preset in cls.presets.values()]
    return {n: value for n, value in known.items() if not all(n in options for options in given)}


def scores(resolved: ResolvedTask, corpus: Path) -> Record:
    """Return number and mean of the rows of each metric of a model, and of the summary's.

    Rows of far lengths are counted by themselves: no headline depends on them.
    The model knows two thirds of the answers where a task makes its own sequences; else it is an
    untrained one.
    """
    task = resolved.task
    if task.measures_time:  # no run repeats its numbers
        return {}
    model: Decoder
    if isinstance(task, LengthGeneralizationTask):
        model = Oracle(recall(task), vocab_size=resolved.model.vocab_size)
    else:
        torch.manual_seed(0)
        model = Decoder(resolved.model, Encoding)
    model.eval()
    rows = []
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        for subset in task.subsets:
            rows += task.evaluate(model, subset, 0, Journal(Path(folder, subset))).rows
    rows += [replace(row, metric=f"{row.metric}, summary") for row in task.summarize(rows)]
    far = far_lengths(task)
    values: dict[str, list[float]] = {}
    for row in rows:
        is_far = row.length in far or row.subset.endswith(FAR)
        kind = "far score" if is_far else "score"
        values.setdefault(f"{kind} {row.metric}", []).append(row.value)
    return {name: [len(each), sum(each) / len(each)] for name, each in values.items()}


def far_lengths(task: Task) -> set[int]:
    if not isinstance(task, LengthGeneralizationTask):
        return set()
    points = [point for subset in task.subsets for point in task.eval_points(subset)]
    return {point.length for point in points if point.split == FAR}


def recall(task: LengthGeneralizationTask) -> Any:
    """Return an oracle's answers: the rows of a task's items, every third with a wrong end."""
    known: dict[tuple[int, ...], list[int]] = {}
    for subset in task.subsets:
        for point in task.eval_points(subset):
            items = task.items(subset, point)
            for number, (ids, scored, length) in enumerate(
                zip(items.ids.tolist(), items.scored, items.lengths, strict=True)
            ):
                row = ids[:length]
                answers = [*row[1:], 0]
                if number % 3 == 0:
                    last = max(i for i in range(length) if scored[i])
                    answers[last - 1] = (answers[last - 1] + 1) % task.vocabulary.vocab_size
                known[tuple(row[: int(scored.argmax())])] = answers
    starts = sorted({len(prompt) for prompt in known}, reverse=True)

    def answer(given: list[int]) -> list[int]:
        for start in starts:
            if tuple(given[:start]) in known:
                return known[tuple(given[:start])]
        return []

    return answer


def encoding_record(name: str) -> Record:
    """Return losses and gradients of an encoding in all its variants, as norms."""
    cls: type[Encoding] = plugins.load("encoding", name).cls
    record: Record = {"digest": digest(decoder.VERSION, plugins.load("encoding", name).version)}
    for variant in ("", *cls.variants):
        plugin = plugins.load("encoding", f"{name}:{variant}" if variant else name)
        for what, value in model_numbers(plugin.make).items():
            record[f"{variant} {what}".strip()] = value
    return record


def model_numbers(make: Any) -> Record:
    """Return the losses of a model with an encoding, before and after training."""
    torch.manual_seed(0)
    model = Decoder(SHAPE, make)
    tokens = torch.randint(2, 32, (2, 2 * SHAPE.train_length + 1))
    short = tokens[:, : SHAPE.train_length]
    torch.manual_seed(1)
    loss = model.loss(short)
    loss.backward()
    squares = [p.grad.double().pow(2).sum() for p in model.parameters() if p.grad is not None]
    record = {"training loss": loss.item(), "gradient": float(torch.stack(squares).sum().sqrt())}
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in model.encodings.parameters():  # many start at zero
            parameter.add_(0.1 * torch.randn_like(parameter))
        record["loss at twice the length"] = model.eval().loss(tokens).item()
    return record


def decoder_record() -> Record:
    """Return outputs of the decoder without positions, and generated tokens."""
    torch.manual_seed(0)
    model = Decoder(replace(SHAPE, heads=4, kv_heads=2), Encoding).eval()
    prompts = [[7, 8, 9], [10, 11, 12, 13, 14, 15]]
    greedy = model.generate(prompts, max_new_tokens=8)
    drawn = model.generate(prompts, max_new_tokens=8, sampling=Sampling(top_k=5, seed=1))
    return {
        "digest": digest(decoder.VERSION),
        **model_numbers(Encoding),
        "grouped heads": model.loss(torch.tensor([prompts[1]])).item(),
        "generated": sha256([greedy, drawn]),
        "defaults": asdict(ModelConfig()),
    }


class Bigram(nn.Module):
    """A trainable bigram table whose loss has noise, as the loss of an encoding may have."""

    def __init__(self) -> None:
        super().__init__()
        table = torch.arange(64.0).view(8, 8).sin()
        self.table = nn.Parameter(table)
        self.bias = nn.Parameter(table[0].clone())

    def extra_loss(self) -> None:
        return None

    def token_losses(self, tokens: Tensor, targets: Tensor, scored: Tensor) -> Tensor:
        logits = (self.table[tokens] + self.bias) * (5 + torch.rand(()))  # (B, T, 8)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")


def training_record() -> Record:
    """Return loss and weights after twenty steps, and the learning rates of each schedule."""
    model = Bigram()
    start = model.table.detach().clone()

    def batch(step: int) -> Batch:
        ids = (torch.arange(24) * (step + 3) % 8).view(4, 6)
        return Batch(ids[:, :-1], ids[:, 1:])

    config = TrainConfig(steps=20, batch_size=4, micro_batch=2, lr=0.03)
    trained = train(Training(cast(Decoder, model), batch, config, 3, "cpu", "fp32"))
    record: Record = {
        "digest": digest(TRAINING_VERSION),
        "loss": trained.loss,
        "distance": float((model.table.detach() - start).norm()),  # from the initial weights
        "bias": float(model.bias.detach().norm()),
        "defaults": asdict(TrainConfig()),
    }
    for schedule in ("cosine", "linear", "constant"):
        rates = [scale(step, replace(config, schedule=schedule)) for step in (0, 7, 19)]
        record[schedule] = sum(rates)
    return record


TASKS = [f"task {name}" for name in catalogue.names("task")]
ENCODINGS = [f"encoding {name}" for name in catalogue.names("encoding")]
SLOW = ["task passkey", "task perplexity", "task properties", "task scrolls"]  # long evaluations
EVERYDAY = {"decoder", "training", *TASKS, *(f"encoding {name}" for name in KINDS)} - {*SLOW}
NAMES = ["decoder", "training", *TASKS, *ENCODINGS]


def current(name: str, corpus: Path) -> Record:
    kind, _, plugin = name.partition(" ")
    if kind == "task":
        return task_record(plugin, corpus)
    if kind == "encoding":
        return encoding_record(plugin)
    return decoder_record() if kind == "decoder" else training_record()


def remedy(name: str) -> str:
    """Return the name of the version that determines the numbers of an entry."""
    kind, _, plugin = name.partition(" ")
    if kind == "decoder":
        return "raise VERSION in pe_bench/decoder/__init__.py"
    if kind == "training":
        return "raise VERSION in pe_bench/train/training_result.py"
    file = catalogue.path_of("task" if kind == "task" else "encoding", plugin)
    where = f"raise `version` of the class in {file.relative_to(PACKAGE)}"
    if kind == "task":
        return f"{where}, or of its base in pe_bench/sequences where all such tasks have changed"
    return f"{where}, or the decoder's where `decoder` fails too"


def moved(old: Record, new: Record) -> list[str]:
    """Return the numbers that have changed; new metrics or options are allowed."""
    found = []
    for what in sorted(old.keys() - {"digest", "defaults"}):
        if not alike(old.get(what), new.get(what)):
            found.append(what)
    before, now = plain(old.get("defaults", {})), plain(new.get("defaults", {}))
    found += [f"default of {n}" for n in before.keys() & now.keys() if before[n] != now[n]]
    return found


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


def alike(old: Any, new: Any) -> bool:
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(alike, old, new))
    if isinstance(old, float) and isinstance(new, float | int):
        if math.isnan(old):
            return math.isnan(new)
        return math.isclose(old, new, rel_tol=TOLERANCE, abs_tol=TOLERANCE / 10)
    return bool(old == new)


def complaint(name: str, old: Record, new: Record) -> str:
    """Return a sentence about changed numbers of an entry; empty: none has changed."""
    changed = moved(old, new)
    if changed and old["digest"] == new["digest"]:
        return f"{name}: {', '.join(changed)} moved, but no digest: {remedy(name)}"
    if old["digest"] != new["digest"]:
        return (
            f"{name}: its digest is {new['digest']} and was {old['digest']}, so new runs share no "
            "table with earlier ones; if that is meant: PYTHONPATH=. python tests/test_numbers.py"
        )
    return ""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("numbers") / "corpus")


@pytest.fixture(scope="module")
def stored() -> Iterator[Record]:
    yield json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", some_slow(NAMES, EVERYDAY))
def test_numbers_and_digests_are_what_they_were(name: str, corpus: Path, stored: Record) -> None:
    assert name in stored, "new: PYTHONPATH=. python tests/test_numbers.py"
    assert complaint(name, stored[name], current(name, corpus)) == ""


def test_nothing_is_stored_that_is_gone(stored: Record) -> None:
    assert stored.keys() == set(NAMES)


OLD = {"digest": "d1", "loss": 2.0, "items": "cafe", "score a": [3, 50.0], "defaults": {"n": 5}}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, ""),
        ({"loss": 2.0001}, ""),
        ({"loss": 2.001}, "loss moved, but no digest: raise `version` of the class in tasks/"),
        ({"items": "beef", "loss": 3.0}, "items, loss moved"),
        ({"score a": [4, 50.0]}, "score a moved"),
        ({"score a": None}, "score a moved"),
        ({"score b": [1, 2.0]}, ""),
        ({"defaults": {"n": 6}}, "default of n moved"),
        ({"defaults": {"n": 5, "m": 6}}, ""),
        ({"defaults": {}}, ""),
        ({"digest": "d2"}, "its digest is d2 and was d1"),
        ({"digest": "d2", "loss": 3.0}, "its digest is d2 and was d1"),
    ],
)
def test_what_is_complained_of(changes: Record, says: str) -> None:
    found = complaint("task addition", OLD, OLD | changes)
    assert says in found if says else found == ""


def write(names: list[str]) -> int:
    """Write some entries again, or all, except numbers that changed under the same digest."""
    stored = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        corpus = write_corpus(Path(folder) / "corpus")
        made = {name: plain(current(name, corpus)) for name in names or NAMES}
    refused = False
    for name in stored.keys() & made.keys():
        if moved(stored[name], made[name]) and stored[name]["digest"] == made[name]["digest"]:
            print(complaint(name, stored[name], made[name]))
            refused = True
    if not refused:
        kept = {name: made.get(name) or stored[name] for name in NAMES}
        FILE.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return int(refused)


if __name__ == "__main__":
    sys.exit(write(sys.argv[1:]))
