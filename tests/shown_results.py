"""A results folder written by hand: whatever the reporting layer distinguishes, once.

Names and seeds are not in order, seeds differ, and numbers are not round, so that a swap, a wrong
direction or a mean in place of a sum changes the report.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from made_runs import write_record
from shown_runs import (
    FREE,
    OWN,
    ROPE,
    WIDE,
    cells,
    make_curve,
    noise,
    put,
    put_baselines,
    settings,
    tuning,
)

from pe_bench.results.layout import CURVES
from pe_bench.results.learning_curves import OF_A_RUN, write_curve_file
from pe_bench.results.measurement import Measurement
from pe_bench.results.metrics import Metric
from pe_bench.results.record import RunRecord
from pe_bench.results.views import Column, Curve, Gallery, Headline, Heatmap, View
from pe_bench.system.files import slug

ADDITION = "addition:digits=3"
MANY = [f"{'mpxy'[n % 4]}{n}.py" for n in range(8)]
SEEDS = (4, 0, 2)
NEAR = "near-in-distribution"
FAR = Headline("accuracy", "far")
FAR_ONLY = (Column("far", "accuracy"),)


def write_results(root: Path) -> None:
    """Write all runs, baselines and questions into a folder."""
    put_recall(root)
    put_sizes(root)
    put_parts(root)
    put_losses(root)
    put_adapted(root)
    put_small(root)
    put_times(root)
    put_failures(root)
    (root / "questions.toml").write_text(
        f'[[question]]\nfirst = "{FREE}"\nsecond = "{OWN}"\n\n'
        f'[[question]]\nfirst = "{ROPE}"\nsecond = "{OWN}"\ntask = ["flipflop", "clock"]\n',
        encoding="utf-8",
    )


def put_recall(root: Path) -> None:
    """Write a tuned task with a gate, curves, a map, a gallery and learning curves."""
    views: tuple[View, ...] = (
        Column("far", "accuracy"),
        Column(NEAR, "token_accuracy"),
        Column("by length", "accuracy", "sum"),
        Curve("far", "accuracy", "far away"),
        Curve(NEAR, "token_accuracy", x="context", log_x=False),
        Curve(NEAR, "own_loss", log_y=True),
        Heatmap("grid", "accuracy", "cells by depth", trained=(1, 8)),
        Gallery("logits", "mean_logit", "mean logits", "mean logit"),
    )
    for index, (encoding, mean) in enumerate(
        {OWN: 81.3, ROPE: 62.7, FREE: 58.1, WIDE: 41.9}.items()
    ):
        for seed in SEEDS[: 2 if encoding == WIDE else 3]:
            value = mean + noise(index, seed)
            rows = [
                Measurement("far", "accuracy", value, 90, 2.1, None, "", value - 4, value + 3),
                Measurement(NEAR, "token_accuracy", value + 12.3, 45, 1.2),
                Measurement("by length", "accuracy", value - 7, 30, 1.0, 16),
                Measurement("by length", "accuracy", value - 17, 30, 1.0, 64),
            ]
            for length in (128, 16, 32):
                score = max(0.0, value + 15 - length / 2)
                rows.append(Measurement("far", "accuracy", score, 30, 1, length))
            for length in (96, 0) if encoding in (ROPE, FREE) else ():
                loss = 0.25 + length / (16 + 16 * index) + seed / 50
                rows.append(Measurement(NEAR, "token_accuracy", value + length / 16, 30, 1, length))
                rows.append(Measurement(NEAR, "own_loss", loss, 30, 1, length))
            if encoding in (OWN, FREE):
                rows += cells(index, seed)
            if encoding == FREE or (encoding, seed) == (ROPE, 4):
                rows = [replace(row, status="not_learned") for row in rows]
            loss = 0.31 + index / 8 + (9 if (encoding, seed) == (ROPE, 4) else 0)
            folder = put(
                root, "mqar", encoding, seed, rows, place=index, digest="d1-recall", items=True,
                headline=FAR, views=views, gate=65.5,
                metrics={"own_loss": Metric("own loss", "nats", higher_is_better=False)},
                unavailable={"very far": "too long"},
                sources={"encoding": f"my/{FREE}"} if encoding == FREE else {},
                costs={"all": {"training": {"loss": loss, "seconds": 20.0 + index + seed / 8}}},
            )  # fmt: skip
            if encoding in (FREE, ROPE):
                write_curve_file(folder / CURVES, {("task", ""): make_curve(index, seed)}, OF_A_RUN)
    known = {
        "bigram table": [("far", None, 20.5), (NEAR, None, 21.5), ("far", 16, 24.5)],
        "guessing": [("far", None, 12.5), ("far", 16, 12.5)],
        "table of unigrams": [("far", None, 47.5), ("far", 32, 45.5), ("far", 16, 49.5)],
    }
    baselines: dict[str, list[Measurement]] = {name: [] for name in known}
    for name, own in known.items():
        for subset, at, value in own:
            metric = "token_accuracy" if subset == NEAR else "accuracy"
            baselines[name].append(Measurement(subset, metric, value, 9, length=at))
    put_baselines(root, "mqar", "d1-recall", baselines)


def put_sizes(root: Path) -> None:
    """Write the same task with a wider model, where the order is another one."""
    model = {"layers": 4, "heads": 8, "width": 96, "mlp_width": 192}
    for index, (encoding, mean) in enumerate({OWN: 55.4, ROPE: 71.2, FREE: 85.9}.items()):
        for seed in SEEDS:
            value = mean + noise(index, seed, 5)
            status: Any = "not_learned" if encoding == OWN else "ranked"
            rows = [Measurement("far", "accuracy", value, 90, status=status)]
            put(root, "mqar", encoding, seed, rows, place=index, digest="d2-wide", gate=65.5,
                headline=FAR, views=FAR_ONLY, settings=settings("mqar", model=model),
                parameters=245_000 + 100 * index)  # fmt: skip
    known = {"guessing": 11.5, "table of unigrams": 44.5}
    rows_of = {name: [Measurement("far", "accuracy", value, 9)] for name, value in known.items()}
    put_baselines(root, "mqar", "d2-wide", rows_of)


def put_parts(root: Path) -> None:
    """Write a task of parts with different lengths and metrics."""
    parts = {"short": ("exact_match", 12), "long": ("f1", 700), "medium": ("exact_match", 90)}
    views = tuple(Column(name, metric) for name, (metric, _) in parts.items())
    for index, encoding in enumerate((WIDE, ROPE, OWN, FREE)):
        for seed in (4, 0):
            value = 33.4 + 5 * index + noise(index, seed, 3)
            rows = [Measurement("all", "exact_match", value, 40)]
            for number, (name, (metric, length)) in enumerate(parts.items()):
                part = value + 9 * number - 3 * index
                rows.append(Measurement(name, metric, part, 12, 1.0, length))
            costs = {}
            for number, name in enumerate(parts):
                training = {"loss": 0.25 + seed * number / 8, "seconds": 5.0 + number + index}
                costs[name] = {"training": training}
            put(root, ADDITION, encoding, seed, rows, place=index, digest="d3-parts",
                headline=Headline("exact_match", "all"), views=views, fine_tune_length=96,
                costs=costs, tuning=tuning(encoding, index, [*parts]))  # fmt: skip
    rows = [
        Measurement("all", "exact_match", 1.5, 9),
        Measurement("short", "exact_match", 3.5, 9, length=12),
    ]
    put_baselines(root, ADDITION, "d3-parts", {"constant": rows})


def put_losses(root: Path) -> None:
    """Write a task whose losses differ significantly, lower is better, with six seeds."""
    views = (Column("all", "bits_per_byte"), Curve("test", "bits_per_byte", log_y=True))
    for index, (encoding, mean) in enumerate({FREE: 1.4, OWN: 1.13, ROPE: 1.42}.items()):
        for seed in (5, 0, 3, 1, 2, 4):
            value = mean + noise(index, seed, 2) / 100
            rows = [Measurement("all", "bits_per_byte", value, 40)]
            for length in (64, 256):
                loss = value * 64 / length + index / 8
                rows.append(Measurement("test", "bits_per_byte", loss, 9, 0.01, length))
            put(root, "flipflop", encoding, seed, rows, place=index, digest="d4-losses",
                headline=Headline("bits_per_byte", "all"), views=views,
                environment={"device": "CPU", "git": None}, options=None, max_train_axis=None,
                sources={"tokenizer": "my.json",
                         "data": {"": "/texts", "books": "/b"}})  # fmt: skip
    rows = [Measurement("all", "bits_per_byte", 1.9, 9)]
    put_baselines(root, "flipflop", "d4-losses", {"table of unigrams": rows})


def put_adapted(root: Path) -> None:
    """Write models that were adapted from one model, each with one seed."""
    config = {"steps": 100, "lr": 1e-4, "batch_size": 8, "length": 96, "method": "lora", "rank": 4}
    changed = settings("reading.py", tune=None, **{"from": {"encoding": "rope", "version": "3"}})
    views = (
        Column("old", "perplexity", at_trained_length=True),
        Column("new", "tail_bits_per_byte"),
        Curve("new", "perplexity", "pages"),
    )
    for index, name in enumerate(("rope", "alibi", "alibi")):
        label = f"rope -> {name} [100 steps{',;'[index - 1]} lora]" if index else "rope -> rope"
        low, mean, high = 13.5, 14.25 + 1.75 * index, 19.75 + index
        rows = [
            Measurement("old", "perplexity", mean, 20, 0.2, None, "", low, high),
            Measurement("new", "tail_bits_per_byte", 2.125 - 0.5 * index, 20),
        ]
        for length in (32, 96, 64):
            mean = 20.5 - 3 * index + length / (32 + 32 * index)
            low, high = mean - 1.5, mean + 2
            rows.append(Measurement("new", "perplexity", mean, 20, 0.3, length, "", low, high))
        put(root, "reading.py", label, 2, rows, place=index, digest="d5-adapted", settings=changed,
            headline=Headline("tail_bits_per_byte", "new"), views=views,
            preset="small", protocol="paper", max_train_axis=None,
            adaptation={"encoding": name, "from": "rope", "config": config, "unchanged": not index},
            options=("--adapt.steps=100", "--data", "DIR") if index else None, tuning=None,
            data={"label": "books-77"}, sources={"task": "tasks/reading.py"})  # fmt: skip


def put_small(root: Path) -> None:
    """Write a task with published numbers, and one encoding with one seed of two."""
    for place, encoding in {0: ROPE, 1: OWN, 3: FREE}.items():
        for seed in (1, 0)[: 1 if encoding == FREE else 2]:
            value = 22.5 + 11 * place + noise(place, seed, 4)
            rows = [
                Measurement("far", "accuracy", value, 40, ci_low=value - 5, ci_high=value + 6),
                Measurement("near", "correct_prefix", value / 2, 40),
            ]
            put(root, "passkey", encoding, seed, rows, place=place, digest="d6-tuned", items=True,
                headline=FAR, views=FAR_ONLY, notes=("a note",))  # fmt: skip
    rows = [Measurement("far", "accuracy", 3.5, 9)]
    put_baselines(root, "passkey", "d6-tuned", {"guessing": rows})


def write_untuned(root: Path) -> None:
    """Write runs of one seed, two of them equal, without a best score; and tuned ones."""
    for index, encoding in enumerate((OWN, ROPE, FREE)):
        for digest, tuned in (("d7-tuned", True), ("d8-untuned", False)):
            value = (55.5, 52.5, 52.5)[index] + (1.75 if tuned else 0)
            rows = [Measurement("far", "accuracy", value, 40, ci_low=value - 5, ci_high=value + 6)]
            rates: dict[str, Any] = {"tuning": None, "settings": settings("mqar", tune=None)}
            if tuned:  # by the rule of an earlier version
                tune = {"lr": [0.0005, 0.002], "seeds": [1000]}
                rates = {"settings": settings("mqar", tune=tune)}
            put(root, "mqar", encoding, 3, rows, place=index, digest=digest, items=True,
                headline=FAR, views=FAR_ONLY, unavailable={"beyond": "too far"},
                metrics={"accuracy": Metric("gain", higher_is_better=True)}, **rates)  # fmt: skip


def write_small_sizes(root: Path) -> None:
    """Write a task of losses at three sizes, with one seed and few encodings."""
    for width in (96, 24, 48):
        model = {"layers": 2, "heads": width // 12, "width": width, "mlp_width": 96}
        for index, encoding in enumerate((ROPE, OWN)):
            loss = 1.25 + (width == 48) * index / 4 - index / 8
            put(root, "flipflop", encoding, 3, [Measurement("all", "bits_per_byte", loss, 9)],
                place=index, digest=f"d11-{width}", headline=Headline("bits_per_byte", "all"),
                settings=settings("flipflop", model=model), parameters=9000 + width**2)  # fmt: skip


def put_times(root: Path) -> None:
    """Write a task that measures times."""
    views = (Column("step", "forward_ms"), Curve("step", "forward_ms", log_y=True))
    train = {"steps": 0, "lr": 0.1, "batch_size": 1}
    for index, encoding in enumerate((WIDE, "alibi", ROPE)):
        low, mean = 9 - 2.5 * index, 9.75 - 2.5 * index
        rows = [Measurement("step", "forward_ms", mean, 11, ci_low=low, ci_high=10.25)]
        for length in (128, 1024):
            mean = length / (64 - 8 * index)
            low, high = mean - 0.5, mean + 1
            rows.append(Measurement("step", "forward_ms", mean, 11, 1.0, length, "", low, high))
        put(root, "clock", encoding, 0, rows, place=index, digest="d9-times", measures_time=True,
            headline=Headline("forward_ms", "step"), preset="small", settings={"train": train},
            notes=("2,048 tokens: out of memory",) if index else (), views=views, costs={},
            options=("--model.layers=3",), tuning=None)  # fmt: skip


def put_failures(root: Path) -> None:
    """Write a failed run and a skipped one."""
    reasons = {"failed": (FREE, "The loss is not finite.\nSecond."), "skipped": (WIDE, None)}
    for status, (encoding, reason) in reasons.items():
        folder = root / "runs" / "passkey" / slug(encoding) / "seed9-d6"
        fields: dict[str, Any] = {"status": status, "task": "passkey", "encoding": encoding}
        fields |= {"seed": 9, "settings_digest": "d6-tuned", "reason": reason}
        write_record(folder, RunRecord(**fields))


def write_many(root: Path) -> None:
    """Write a task with more encodings than fit into a panel."""
    views = (
        Curve("far", "accuracy", "far away"),
        Curve("far", "mean_logit", log_y=True),
        Column("far", "accuracy"),
        Column("near", "accuracy"),
    )
    for index, encoding in enumerate((ROPE, *MANY)):
        rows = [Measurement("all", "accuracy", 50 + noise(index, 1), 9)]
        for length in (16, 64, 32):
            value = 50 + noise(index, length) - length / 2
            low, high = value - 2, value + 3
            rows.append(Measurement("far", "accuracy", value, 9, 1, length, "", low, high))
            rows.append(Measurement("far", "mean_logit", 5 * length + 2 * index, 9, 1, length))
        rows.append(Measurement("near", "accuracy", 70 + noise(index), 9, 1, 8, "", 60, 80))
        if index == 2:
            rows = [replace(row, status="not_learned") for row in rows]
        put(root, "mqar", encoding, 0, rows, place=index, digest="d10-many", gate=50.0,
            headline=Headline("accuracy", "all"), views=views)  # fmt: skip
    known = {"guessing": [Measurement("all", "accuracy", 9.5, 9),
                          Measurement("far", "accuracy", 9.5, 9, length=16),
                          Measurement("near", "accuracy", 30.5, 9, length=8)]}  # fmt: skip
    put_baselines(root, "mqar", "d10-many", known)
