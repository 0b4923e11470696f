"""Questions asked in advance, on the command line and in a results folder."""

import os
from pathlib import Path

import pytest
from test_compare import put, put_baselines

from pe_bench.cli import main
from pe_bench.errors import InputError
from pe_bench.reporting.markdown import escape
from pe_bench.reporting.questions import (
    NAME,
    Answers,
    Question,
    answer,
    answer_questions,
    parse_pairs,
    read_questions,
)
from pe_bench.reporting.report import write_report
from pe_bench.reporting.tables import read_tables

NEAR = [50.0, 51.0, 49.5, 50.5, 50.0]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Return three tasks in which tape is better than rope by 4 points and nope equals rope."""
    for task in ("one", "two", "three"):
        put(tmp_path, task, "rope", NEAR)
        put(tmp_path, task, "tape", [54.0, 55.3, 53.6, 54.4, 54.1])
        put(tmp_path, task, "nope", [50.1, 50.9, 49.5, 50.6, 49.9])
    put_baselines(tmp_path, "one", "two", "three")
    return tmp_path


@pytest.mark.slow
def test_questions_are_corrected_among_themselves(results: Path) -> None:
    tables = read_tables(results)
    (alone,) = answer(tables, [Question("tape", "rope", ("one",))]).answers
    assert alone.startswith("one: tape is better than rope") and "corrected" not in alone
    twice = [Question("tape", "rope", ("one",)), Question("rope", "tape", ("one",))]
    assert answer(tables, twice).answers == [alone]
    asked = [Question("tape", "rope", ("one", "two")), Question("nope", "rope")]
    lines = answer(tables, asked).answers
    assert "corrected for 3 comparisons" in lines[0] and lines[1].startswith("two: tape is better")
    assert lines[2].startswith("Mean score (0: ") and "not significant" in lines[2]
    put(results, "one", "other", [1.0, 2.0, 3.0, 4.0, 5.0])  # another encoding changes nothing
    asked = [Question("tape", "rope", ("one",))]
    assert answer(read_tables(results), asked) == Answers([alone], [])


@pytest.mark.slow
def test_comparisons_without_runs_count_in_the_correction(results: Path) -> None:
    """The p-value of a question does not rise with the runs of the other questions."""
    asked = [Question("tape", "rope", ("one", "two", "later")), Question("tape", "unknown")]
    found = answer(read_tables(results), asked)
    assert [line[:4] for line in found.answers] == ["one:", "two:"]
    assert all("corrected for 4 comparisons" in line for line in found.answers)
    overlapping = [
        Question("tape", "rope", ("one", "two")),
        Question("rope", "tape", ("one", "one")),
        Question("tape", "rope", ("two", "three")),
    ]
    found = answer(read_tables(results), overlapping)
    assert [line.partition(":")[0] for line in found.answers] == ["one", "two", "three"]
    assert all("corrected for 3 comparisons" in line for line in found.answers)


@pytest.mark.slow
def test_what_cannot_be_answered_is_named(results: Path) -> None:
    put(results, "one", "late", [1.0, 2.0])
    put(results, "one", "apart", [1.0, 2.0], first_seed=7)
    put(results, "one", "half", [1.0, 2.0])
    put(results, "two", "half", [1.0, 2.0], first_seed=2)
    tables = read_tables(results)
    for question, said in (
        (Question("tape", "late", ("two",)), "no score of late."),
        (Question("tape", "apart", ("one",)), "no seed in common"),
        (Question("tape", "rope", ("four",)), "four: no scores of tape and rope."),
        (Question("tape", "late"), "tape and late have only one in common, so there is no mean"),
        (Question("tape", "apart"), "tape and apart have no scores of the same seed on any task."),
        (Question("tape", "half"), "a seed in common in all of them."),
        (
            Question("tape", "ropes", ("one",)),
            "no results of ropes (did you mean 'rope'?).",
        ),
    ):
        found = answer(tables, [question, Question("tape", "rope", ("one",))])
        assert len(found.answers) == 1 and "corrected for 2 comparisons" in found.answers[0]
        assert any(said in line for line in found.left_out), found.left_out


@pytest.mark.slow
def test_a_file_beside_results_is_answered_in_the_report(results: Path) -> None:
    (results / NAME).write_text(
        '[[question]]\nfirst = "tape"\nsecond = "rope"\ntask = "one"\n', encoding="utf-8"
    )
    (sentence,) = answer_questions(results, read_tables(results))
    write_report(results)
    text = (results / "leaderboard.md").read_text(encoding="utf-8")
    assert f"## Questions asked in advance\n\n- {escape(sentence)}" in text
    assert sentence in (results / "index.html").read_text(encoding="utf-8").replace("&lt;", "<")


def test_the_command(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = ["--ask", "tape rope", "nope rope", "--task", "one", "two"]
    assert main(["compare", *pairs, "--results", str(results)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("corrected for 4 comparisons") >= 2 and "two: nope and rope do not" in said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "has no questions"),
        ("[question]\nfirst = 1", "has no questions"),
        ('x = 1\n[[question]]\nfirst = "a"\nsecond = "b"', "has no questions"),
        ('[[question]]\nfirst = "a"', "second"),
        ('[[question]]\nfirst = "a"\nsecond = 3', "second must be a name"),
        ('[[question]]\nfirst = "a"\nsecond = "b\\u001b"', "second must be a name"),
        ('[[question]]\nfirst = "a"\nsecond = "b"\ntask = [1]', "must be a name"),
        ('[[question]]\nfirst = "a"\nsecond = "b"\ntasks = "c"', "has no 'tasks'"),
        ("[[question", "is not TOML"),
        (b"\xff", "is not TOML"),
        (b"#" * (2**20 + 1), "larger than 1 MiB"),
        (None, "not a regular file"),
    ],
)
def test_wrong_files(tmp_path: Path, content: str | bytes | None, said: str) -> None:
    path = tmp_path / NAME
    if content is None:
        os.mkfifo(path)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as caught:
        read_questions(path)
    assert str(path) in str(caught.value) and said in str(caught.value)


@pytest.mark.slow
def test_the_rest_is_used_of_results_with_a_wrong_file(results: Path) -> None:
    path = results / NAME
    os.mkfifo(path)
    with pytest.raises(InputError, match="not a regular file"):
        write_report(results)
    assert "tape" in (results / "leaderboard.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_questions_may_be_older_than_their_runs(results: Path) -> None:
    (results / NAME).write_text('[[question]]\nfirst = "new"\nsecond = "rope"\ntask = "one"\n')
    write_report(results)
    text = (results / "leaderboard.md").read_text(encoding="utf-8")
    assert "## Questions asked in advance\n\n- There are no results of new" in text


@pytest.mark.slow
def test_wrong_commands(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="pairs of encodings in quotes"):
        parse_pairs(["tape"], None)
    for words, said in (
        (["--ask", "tape rope", "--all"], "leave out --all"),
        (["tape", "--ask", "tape rope"], "leave out tape"),
        (["--ask", "tape ropes"], "did you mean 'rope'"),
        (["--ask", "tape tape"], "names one encoding twice"),
        (["--ask", "tape rope", "--task", "four"], "no results of a task 'four'"),
    ):
        assert main(["compare", *words, "--results", str(results)]) == 2
        assert said in capsys.readouterr().err
