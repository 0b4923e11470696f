"""Questions that were asked before the runs, and are corrected among themselves only.

A results folder may have a file `questions.toml`:

    [[question]]
    first = "tape"
    second = "rope"
    task = ["mqar", "perplexity"]

Each task of a question is one comparison. A question without `task` is one comparison: that of the
mean scores over all tasks that both encodings were run on.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pe_bench.errors import InputError
from pe_bench.reporting.selection import tables_of_tasks
from pe_bench.reporting.sentences import describe_mean, describe_verdict, names_of
from pe_bench.reporting.tables import Table
from pe_bench.reporting.task_summary import is_quality, task_scores
from pe_bench.reporting.verdicts import Verdict, both_means, check_encodings, mean_of_tasks
from pe_bench.stats.comparison import Scores, compare_asked
from pe_bench.system.toml_file import read_toml

NAME = "questions.toml"
HEADING = "Questions asked in advance"
PAIR = 2
KEYS = {"first", "second", "task"}


@dataclass(frozen=True)
class Question:
    """Is one encoding better than another one?

    Attributes:
        first, second: labels of the encodings.
        tasks: names of tasks, one comparison each; empty: the mean score over all tasks.
    """

    first: str
    second: str
    tasks: tuple[str, ...] = ()


def read_questions(path: Path) -> list[Question]:
    """Return the questions of a file.

    Raises:
        InputError: the file cannot be read, or has something else than questions.
    """
    content = read_toml(path)
    wrong = f"{path}: each question is a table [[question]] with first, second and task"
    entries = content.pop("question", None)
    if content or not isinstance(entries, list) or not entries:
        raise InputError(wrong)
    return [_read(entry, wrong) for entry in entries]


def parse_pairs(pairs: Sequence[str], tasks: Sequence[str] | None) -> list[Question]:
    """Return questions from the command line, each with two labels in one word.

    Raises:
        InputError: a word does not have two labels.
    """
    questions = []
    for pair in pairs:
        labels = pair.split()
        if len(labels) != PAIR:
            raise InputError(
                f"--ask takes pairs of encodings in quotes, as in --ask 'tape rope', or a file "
                f"{NAME}, not '{pair}'"
            )
        questions.append(Question(labels[0], labels[1], tuple(tasks or ())))
    return questions


def answer(tables: Sequence[Table], questions: Sequence[Question]) -> list[str]:
    """Return a sentence for each comparison, corrected for the number of all of them.

    Args:
        tables: tables of quality.
        questions: questions asked together.

    Raises:
        InputError: a question cannot be answered from these tables.
    """
    asked: list[tuple[Scores, str, str]] = []
    on: list[tuple[str, Table | None]] = []  # None: the mean over tasks
    named = list(zip(names_of(tables), tables, strict=True))
    for question in questions:
        first, second = question.first, question.second
        check_encodings(tables, first, second)
        tables_of_tasks(tables, question.tasks)  # raises for an unknown task
        shared = [(name, t) for name, t in named if {first, second} <= set(t.ranked())]
        if not question.tasks:
            mean = mean_of_tasks([table for _, table in shared], [first, second])
            if mean is None:
                raise InputError(
                    f"{first} and {second} have no mean over tasks: name the tasks of the question"
                )
            asked.append((mean, first, second))
            on.append(("Mean over tasks", None))
        for name, table in shared:
            scores = task_scores(table, [first, second]).scores
            is_asked = {table.task_name, table.about.task} & set(question.tasks)
            if is_asked and math.isfinite(both_means(scores)[0]):
                asked.append((scores, first, second))
                on.append((name, table))
    if not asked:
        raise InputError("no question has results of both encodings with a seed in common")
    lines = []
    found = compare_asked(asked)
    for (name, of), (scores, *_), difference in zip(on, asked, found, strict=True):
        if of is None:
            lines.append(f"{name}: {describe_mean(difference, len(asked))}")
        else:
            verdict = Verdict(of, difference, *both_means(scores), len(asked))
            lines.append(describe_verdict(verdict, name))
    return lines


def answer_questions(folder: Path, tables: Sequence[Table]) -> list[str]:
    """Return the answers to the questions of a results folder; empty without such a file.

    Raises:
        InputError: the file cannot be read, or a question cannot be answered.
    """
    path = folder / NAME
    if not path.exists():
        return []
    try:
        return answer(list(filter(is_quality, tables)), read_questions(path))
    except InputError as error:
        if str(path) in str(error):
            raise
        raise InputError(f"{path}: {error}") from None


def _read(entry: Any, wrong: str) -> Question:
    """Return a question from its table in the file.

    Raises:
        InputError: the table has other keys or values.
    """
    if not isinstance(entry, dict) or not {"first", "second"} <= set(entry) <= KEYS:
        raise InputError(wrong)
    tasks = entry.get("task", [])
    tasks = [tasks] if isinstance(tasks, str) else tasks
    texts = [entry["first"], entry["second"], *(tasks if isinstance(tasks, list) else [None])]
    if not all(isinstance(text, str) and text for text in texts):
        raise InputError(f"{wrong}, all of them names")
    return Question(entry["first"], entry["second"], tuple(tasks))
