"""Each check of tasks, on a task whose batches and rows are made by hand."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from pe_bench.checks import tasks
from pe_bench.checks.findings import NotApplicable
from pe_bench.checks.task_subject import Observed
from pe_bench.config import IGNORE
from pe_bench.results.items import Items, RowKey
from pe_bench.results.measurement import Measurement
from pe_bench.results.metrics import Metric
from pe_bench.results.views import Headline
from pe_bench.task import Batch

SIZE = 50  # tokens in the vocabulary
ROW = Measurement("a", "accuracy", 50.0, 2)
NAMES = sorted(set(tasks.CHECKS) - {"shortcuts", "names"})  # they have their own tests
Change = Callable[[Any], None]


def draw(seed: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * seed + step)
    return torch.randint(SIZE, (4, 9), generator=generator)


def make(change: Change | None = None) -> Any:
    """Return a subject that passes every check, or one with a change."""

    def batch(phase: str | None, seed: int, step: int) -> Batch:
        tokens = draw(seed, step)
        return Batch(tokens[:, :-1], tokens[:, 1:])

    task = SimpleNamespace(
        batch=batch,
        train=SimpleNamespace(steps=9),
        vocabulary=SimpleNamespace(vocab_size=SIZE),
        train_length=8,
        max_eval_tokens=16,
        max_far_tokens=16,
        measures_time=False,
        subsets=("a",),
        all_subsets=("a",),
        trains_each_subset=False,
        metrics={"accuracy": Metric("accuracy", "%", higher_is_better=True)},
        headline=Headline("accuracy", "all"),
        baselines=lambda: {"zeros": [ROW, Measurement("all", "accuracy", 5.0, 2)]},
        summarize=lambda rows: [Measurement("all", "accuracy", 50.0, 2)],
    )
    groups = (RowKey("all"),)
    items = [Items("a", "accuracy", torch.tensor([0.0, 100.0]).numpy(), groups=groups)]
    observed = {"a": Observed([ROW], items, [ROW], [draw(99, 0)[:, :5]], 16)}
    subject = SimpleNamespace(
        task=task, make=lambda: task, model_subsets=(None,), observed=observed, rows=[ROW]
    )
    if change is not None:
        change(subject)
    return subject


@pytest.fixture(autouse=True)
def observe_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another model is evaluated on the inputs that `other` of the task has, if it has any."""

    def observe(task: Any, subset: str, seed: int) -> Observed:
        assert seed == 1
        inputs = getattr(task, "other", [draw(99, 0)[:, :5]])
        return Observed([ROW], [], [ROW], inputs, 16)

    monkeypatch.setattr(tasks, "observe", observe)


def of_task(**values: Any) -> Change:
    return lambda subject: subject.task.__dict__.update(values)


def of_subset(**values: Any) -> Change:
    def change(subject: Any) -> None:
        subject.observed["a"] = subject.observed["a"]._replace(**values)

    return change


def of_batch(tokens: Tensor, targets: Tensor) -> Change:
    return of_task(batch=lambda phase, seed, step: Batch(tokens + 0 * step, targets))


def repeat_items(subject: Any) -> None:
    inputs = [torch.tensor([[1, 2], [1, 2], [1, 2], [1, 2], [2, 1]])]
    of_subset(inputs=inputs)(subject)
    of_task(other=inputs)(subject)


def of_baselines(found: Any) -> Change:
    return of_task(baselines=lambda: found)


GOOD = draw(0, 0)
FEW = [Items("a", "accuracy", torch.tensor([0.0, 0.0]).numpy())]
ELSEWHERE = [Items("b", "accuracy", torch.tensor([0.0, 0.0]).numpy())]
IMPOSSIBLE = Measurement("all", "accuracy", 101.0, 2)
BROKEN: list[tuple[str, Change, str]] = [
    ("steps", of_batch(GOOD, GOOD), "steps 0 and 1 of seed 0 give the same batch"),
    ("ids", of_batch(GOOD, GOOD[:, 1:]), "tokens (4, 9) and targets (4, 8)"),
    ("ids", of_batch(GOOD, GOOD * 0 + IGNORE), "step 0 has no target that counts"),
    (
        "ids",
        of_batch(GOOD * 0 + SIZE, GOOD),
        "step 0 has tokens from 50 to 50, but the",
    ),
    ("ids", of_batch(GOOD, GOOD * 0 - 1), "step 0 has targets from -1 to -1, but the vocabulary"),
    ("ids", of_batch(GOOD.float(), GOOD), "tokens of torch.float32, not torch.int64"),
    ("ids", of_subset(inputs=[GOOD + SIZE]), "the tokens that a is evaluated on range"),
    ("lengths", of_task(train_length=7), "a batch has 8 tokens, train_length is 7"),
    ("lengths", of_subset(longest=17), "on 17 tokens, max_eval_tokens is 16"),
    ("lengths", of_task(max_far_tokens=15), "on 16 tokens, max_eval_tokens is 15"),
    ("items", of_task(other=[]), "a gives another model 0 inputs, not 1"),
    ("items", of_task(other=[draw(98, 0)[:, :5]]), "of another seed, other items"),
    ("items", repeat_items, "only 2 of 5 rows that a is evaluated on differ"),
    ("apart", of_subset(inputs=[draw(0, 0)[:, :5]]), "4 of 4 rows that a is evaluated on"),
    ("headline", of_task(metrics={"accuracy": Metric("accuracy", "%")}), "add it to `metrics`"),
    ("headline", of_task(headline=Headline("accuracy", "b")), "is not among the rows"),
    (
        "headline",
        of_task(summarize=lambda rows: [Measurement("all", "accuracy", float("nan"), 2)]),
        "the headline, accuracy of all, is nan",
    ),
    (
        "numbers",
        of_task(summarize=lambda rows: [Measurement("all", "accuracy", 101.0, 2)]),
        "has 101 %, but a score is 0 to 100 %",
    ),
    ("numbers", of_task(summarize=lambda rows: rows), "occurs twice: give it one number"),
    ("baselines", of_baselines([ROW]), "must return a dict of rows by name, not [Measurement"),
    ("baselines", of_baselines({3: [ROW]}), "the name of a baseline must be one line of text"),
    ("baselines", of_baselines({"zeros": ROW.value}), "'zeros' must be a list of rows, not 50.0"),
    ("baselines", of_baselines({"zeros": [IMPOSSIBLE]}), "'zeros': the row of 'all', 'accuracy'"),
    ("baselines", of_baselines({"zeros": [ROW]}), "lacks the headline, accuracy of all"),
    ("summary", of_task(summarize=lambda rows: [("all", 50.0)]), "other than measurements"),
    ("resume", of_subset(again=[]), "a gives other rows when it resumes"),
    ("scores", of_subset(items=FEW), "accuracy of a is 50 and its items give 0"),
    ("scores", of_subset(items=ELSEWHERE), "items name accuracy of b, which is not among"),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_good_task_has_no_findings(name: str) -> None:
    assert tasks.CHECKS[name](make()) is None


@pytest.mark.parametrize(("name", "change", "says"), BROKEN)
def test_a_finding_says_what_is_wrong(name: str, change: Change, says: str) -> None:
    found = tasks.CHECKS[name](make(change))
    assert found is not None and says in found


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("items", of_task(measures_time=True)),
        ("baselines", of_task(measures_time=True)),
        ("apart", of_subset(inputs=[GOOD.repeat(1, 2)])),  # longer than those of training
        ("apart", of_batch(GOOD, GOOD)),  # all batches are the same rows
    ],
)
def test_what_cannot_be_decided_is_no_finding(name: str, change: Change) -> None:
    with pytest.raises(NotApplicable):
        tasks.CHECKS[name](make(change))


def test_what_is_not_a_number_twice_is_the_same() -> None:
    nan = Measurement("a", "accuracy", float("nan"), 2)
    assert tasks.resume(make(of_subset(rows=[nan], again=[nan]))) is None
