"""Questions that are asked in advance, on the command line and beside results."""

from pathlib import Path

import pytest
from test_compare import put, put_baselines

from pe_bench.cli import main
from pe_bench.errors import InputError
from pe_bench.reporting.markdown import escape
from pe_bench.reporting.questions import (
    NAME,
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
    """Three tasks; tape is better than rope by 4 points, and nope by nothing."""
    for task in ("one", "two", "three"):
        put(tmp_path, task, "rope", NEAR)
        put(tmp_path, task, "tape", [54.0, 55.3, 53.6, 54.4, 54.1])
        put(tmp_path, task, "nope", [50.1, 50.9, 49.5, 50.6, 49.9])
    put_baselines(tmp_path, "one", "two", "three")
    return tmp_path


def test_questions_are_corrected_among_themselves(results: Path) -> None:
    tables = read_tables(results)
    (alone,) = answer(tables, [Question("tape", "rope", ("one",))])
    assert alone.startswith("one: tape is better than rope") and "corrected" not in alone
    lines = answer(tables, [Question("tape", "rope", ("one", "two")), Question("nope", "rope")])
    assert "corrected for 3 comparisons" in lines[0] and lines[1].startswith("two: tape is better")
    assert lines[2].startswith("Mean over tasks: ") and "not significant" in lines[2]
    put(results, "one", "other", [1.0, 2.0, 3.0, 4.0, 5.0])  # another encoding changes nothing
    assert answer(read_tables(results), [Question("tape", "rope", ("one",))]) == [alone]


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
        ("", "each question is a table [[question]]"),
        ("[question]\nfirst = 1", "each question is a table"),
        ('[[question]]\nfirst = "a"', "each question is a table"),
        ('[[question]]\nfirst = "a"\nsecond = 3', "all of them names"),
        ('[[question]]\nfirst = "a"\nsecond = "b"\ntask = [1]', "all of them names"),
        ('[[question]]\nfirst = "a"\nsecond = "b"\nx = 1', "each question is a table"),
        ("[[question", "is not TOML"),
    ],
)
def test_files_that_are_no_questions(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / NAME
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_questions(path)
    assert str(path) in str(caught.value) and said in str(caught.value)


def test_questions_without_an_answer(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = read_tables(results)
    for question, said in (
        (Question("tape", "ropes", ("one",)), "did you mean 'rope'"),
        (Question("tape", "tape", ("one",)), "given twice"),
        (Question("tape", "rope", ("four",)), "no results of a task 'four'"),
    ):
        with pytest.raises(InputError, match=said):
            answer(tables, [question])
    with pytest.raises(InputError, match="pairs of encodings in quotes"):
        parse_pairs(["tape"], None)
    (results / NAME).write_text('[[question]]\nfirst = "tape"\nsecond = "ropes"\n')
    with pytest.raises(InputError, match=r"questions\.toml: .*did you mean 'rope'"):
        answer_questions(results, tables)
    for words in (["--ask", "tape rope", "--all"], ["tape", "--ask", "tape rope"]):
        assert main(["compare", *words, "--results", str(results)]) == 2
        assert "leave out" in capsys.readouterr().err
