"""Questions that were asked before the runs, and are corrected among themselves only.

A results folder may have a file `questions.toml` with tables `[[question]]`, see docs/results.md.
Each task of a question is one comparison. A question without tasks is one comparison, too: it
compares the mean scores over all tasks that both encodings were run on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pe_bench.errors import InputError, suggest
from pe_bench.reporting.selection import tables_of_tasks
from pe_bench.reporting.sentences import describe_mean, describe_verdict, name_among
from pe_bench.reporting.tables import Table
from pe_bench.reporting.task_summary import has_model_scores
from pe_bench.reporting.verdicts import Verdict, both_means, find_shared, mean_of
from pe_bench.results.reading import read_or_report
from pe_bench.stats.comparison import SeedScores, compare_asked
from pe_bench.system.schema import Label, WrongError, read_as
from pe_bench.system.toml_file import read_toml

NAME = "questions.toml"
HEADING = "Questions asked in advance"
QUESTION = "question"


@dataclass(frozen=True)
class Question:
    """Is one encoding better than another one?

    Attributes:
        first, second: labels of the encodings.
        task: names of tasks, one comparison each; empty: the mean score over all tasks.
    """

    first: Label
    second: Label
    task: tuple[Label, ...] = ()


@dataclass(frozen=True)
class Answers:
    """Sentences that answer questions asked together.

    Attributes:
        answers: a sentence for each comparison, corrected for the number of all of them.
        left_out: a sentence for each comparison that the results do not allow.
    """

    answers: list[str]
    left_out: list[str]


def read_questions(path: Path) -> list[Question]:
    """Return the questions of a file.

    Raises:
        InputError: the file cannot be read, or has something else than questions.
    """
    content = read_toml(path)
    entries = content.pop(QUESTION, None)
    if content or not isinstance(entries, list) or not entries:
        raise InputError(f"{path} has no questions: write each as a table [[{QUESTION}]]")
    known = [one.name for one in fields(Question)]
    questions = []
    for entry in entries:
        try:
            questions.append(_read(entry, known))
        except WrongError as error:
            needed = f"a question has the keys {', '.join(known)}"
            raise InputError(f"{path}: {needed}, and {error}") from None
    return questions


def parse_pairs(pairs: Sequence[str], tasks: Sequence[str] | None) -> list[Question]:
    """Return questions from the command line, each with two labels in one word.

    Raises:
        InputError: a word does not have two labels.
    """
    questions = []
    for pair in pairs:
        labels = pair.split()
        if len(labels) != 2:
            raise InputError(
                "--ask takes pairs of encodings in quotes, as in --ask 'tape rope', or a file "
                f"{NAME}, not '{pair}'"
            )
        if labels[0] == labels[1]:
            raise InputError(f"--ask '{pair}' names one encoding twice: name two")
        questions.append(Question(labels[0], labels[1], tuple(tasks or ())))
    return questions


def answer(tables: Sequence[Table], questions: Sequence[Question]) -> Answers:
    """Return the answers to questions asked together.

    Args:
        tables: tables of quality.
        questions: the questions. A pair of encodings counts once on each task. Comparisons whose
            runs are missing count in the correction.
    """
    asked: list[tuple[SeedScores, str, str]] = []
    on: list[Table | None] = []  # None: the mean over tasks
    missing = 0
    left_out: list[str] = []
    for first, second, task in _distinct(questions):
        own = tables_of_tasks(tables, [task], checked=False) if task else tables
        shared, found, notes = find_shared(own, first, second)
        left_out += notes
        if task:
            asked += [(one.scores, first, second) for one in found]
            on += shared
            missing += not shared
            if not shared and not notes:
                left_out.append(f"{task}: no scores of {first} and {second}.")
            continue
        mean = mean_of(shared, found)
        if mean is None:
            missing += 1
            left_out.append(_explain_missing_mean(shared, first, second))
        else:
            asked.append((mean, first, second))
            on.append(None)
    comparisons = len(asked) + missing
    answers = []
    differences = compare_asked(asked, missing)
    for table, (scores, *_), difference in zip(on, asked, differences, strict=True):
        if table is None:
            answers.append(describe_mean(difference, comparisons))
        else:
            verdict = Verdict(table, difference, *both_means(scores), comparisons)
            answers.append(describe_verdict(verdict, name_among(tables, table)))
    return Answers(answers, [*find_unknown(tables, questions), *left_out])


def _distinct(questions: Sequence[Question]) -> list[tuple[str, str, str]]:
    """Return two encodings and a task, or "" for the mean over tasks, for each comparison."""
    found: dict[tuple[frozenset[str], str], tuple[str, str, str]] = {}
    for question in questions:
        pair = frozenset((question.first, question.second))
        for task in question.task or ("",):
            found.setdefault((pair, task), (question.first, question.second, task))
    return list(found.values())


def _explain_missing_mean(shared: Sequence[Table], first: str, second: str) -> str:
    """Return why there is no mean over the tables in which two encodings have scores."""
    tasks = sorted({table.about.task for table in shared})
    if not tasks:
        return f"{first} and {second} have no scores of the same seed on any task."
    if len(tasks) == 1:
        return (
            f"{first} and {second} have only {tasks[0]} in common, so there is no mean over tasks: "
            "ask about this task."
        )
    return (
        f"{first} and {second} have no mean over tasks: it needs two tasks on a fixed scale, one "
        "table of each, and a seed in common in all of them."
    )


def find_unknown(tables: Sequence[Table], questions: Sequence[Question]) -> list[str]:
    """Return a sentence for each encoding of a question that has no results at all."""
    known = sorted({name for table in tables for name in table.encodings})
    asked = dict.fromkeys(name for one in questions for name in (one.first, one.second))
    return [
        f"There are no results of {name}{suggest(name, known)}."
        for name in asked
        if name not in known
    ]


def answer_questions(folder: Path, tables: Sequence[Table]) -> list[str]:
    """Return the answers to the questions of a results folder, and what cannot be answered.

    The list is empty without such a file. If the file cannot be read, `reading` reports this.
    """
    path = folder / NAME
    if not path.exists():
        return []
    questions = read_or_report(read_questions, path)
    if questions is None:
        return []
    found = answer(list(filter(has_model_scores, tables)), questions)
    return [*found.answers, *found.left_out]


def _read(entry: Any, known: Sequence[str]) -> Question:
    """Return a question from its table in the file.

    Raises:
        WrongError: the table has other keys or values.
    """
    if isinstance(entry, dict):
        for key in entry:
            if key not in known:
                raise WrongError(f"has no '{key}'")
        if isinstance(entry.get("task"), str):
            entry = entry | {"task": [entry["task"]]}
    question: Question = read_as(Question, entry)
    return question
