"""A task is refused before training if its declarations or numbers could not be stored."""

import json
from pathlib import Path

import pytest
from test_runner import TASK, Toy, record
from test_runner import toy as toy  # a fixture

VIEWS = 'views = (Column("a", "right"), Column("b", "right"))'
SUBSETS = 'all_subsets = ("a", "b")'
HEADLINE = 'headline = Headline("score", "all")'
ROWS = 'Measurement(subset, "right", value, 5, 0.1, 8)'


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (SUBSETS, 'all_subsets = ("a/b", "a_b")', "'a/b' and 'a_b' would have the same name"),
        (SUBSETS, 'all_subsets = ("a", "A")', "the subsets 'a' and 'A' would have the"),
        (SUBSETS, 'all_subsets = ("a", "a")', "names a subset twice"),
        (SUBSETS, 'all_subsets = ("", "a")', "a subset needs a name"),
        (SUBSETS, "all_subsets = ()", "needs at least one name"),
        (HEADLINE, 'headline = Headline("mine", "all")', "unknown whether higher is better"),
        (VIEWS, "gate = float('nan')", "no record could be made of the task's runs: its gate"),
        (
            VIEWS,
            "max_train_axis = 'far'",
            "no record could be made of the task's runs: its max_train",
        ),
        (VIEWS, 'axes = {"length": 3, "second": ""}', "Toy.axes['length'] must be a string, not 3"),
        (VIEWS, 'axes = {"length": "letters"}', "must give a title to 'length' and 'second'"),
    ],
)
def test_a_declaration_that_cannot_be_stored_is_refused(
    old: str, new: str, sentence: str, toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = TASK.replace(old, new)
    assert code != TASK
    (tmp_path / "toy.py").write_text(code)
    assert toy() == (2, [])
    assert sentence in " ".join(capsys.readouterr().err.split())


def test_runs_on_other_data_need_another_fingerprint(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "a.txt").write_text("a")
    assert toy("--data", "words") == (2, [])
    shown = " ".join(capsys.readouterr().err.split())
    assert "toy.py does not override `fingerprint`, so runs on other data" in shown
    method = """
    @property
    def fingerprint(self):
        return "words " + (self.context.data / "a.txt").read_text()

    def batch("""
    (tmp_path / "toy.py").write_text(TASK.replace("\n    def batch(", method, 1))
    assert toy("--data", "words")[0] == 0
    assert toy("--data", "words") == (0, [])
    (tmp_path / "words" / "a.txt").write_text("b")
    code, log = toy("--data", "words")
    assert code == 0 and log  # runs again


def test_a_broken_declaration_fails_this_task_only(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.py").write_text(TASK.replace("class Toy", "class Other"))
    broken = TASK.replace(VIEWS, "views = property(lambda self: self.nothing)")
    (tmp_path / "toy.py").write_text(broken)
    code, log = toy("./other.py")
    assert (code, log) == (1, ["batch", "batch", "a", "b"])
    shown = capsys.readouterr().err
    assert "toy.py failed, AttributeError" in shown and "toy.py failed, toy.py" not in shown


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ('Measurement(subset, "right", "fifty", 5)', "the value 'fifty', which must be a number"),
        (
            'Measurement(subset, "right", 250.0, 5, ci_low=247.2, ci_high=100.0)',
            "has 250, outside of its interval 247.2 to 100",
        ),
        ('Measurement(subset, "right", True, 5)', "the value True, which must be a number"),
        ('Measurement(subset, "right", float("nan"), 5)', "the value nan, which must be a number"),
        ('Measurement(subset, "score", float("inf"), 5)', "has inf %, but a score is 0 to 100 %"),
        ('Measurement(subset, "score", 101.0, 5)', "has 101 %, but a score is 0 to 100 %"),
        ('Measurement(subset, "score", -1.0, 5)', "has -1 %, but a score is 0 to 100 %"),
        ('Measurement(subset, "right", 1.0, 5.5)', "n = 5.5, which must be a whole number"),
        ('Measurement(subset, "right", 1.0, -5)', "n = -5, which must be a whole number"),
        ('Measurement(subset, "right", 1.0, 5, length=-1)', "the length -1, which must be a whole"),
        ('Measurement(subset, "right", 1.0, 5, length=1.5)', "the length 1.5, which must be"),
        ('Measurement(subset, "right", 1.0, 5, status="best")', "the status 'best', which must be"),
        ('Measurement(subset + "\\n", "right", 1.0, 5)', "must be one line without control"),
        ('("a", 50.0)', "a row must be a Measurement, not ('a', 50.0)"),
        (f"{ROWS}, {ROWS}", "occurs twice: give it one number"),
    ],
)
def test_a_number_that_cannot_be_stored_fails_the_run(
    row: str, sentence: str, toy: Toy, tmp_path: Path
) -> None:
    (tmp_path / "toy.py").write_text(TASK.replace(ROWS, row))
    assert toy()[0] == 2
    refused = record(tmp_path)[0]
    assert refused["status"] == "failed" and sentence in refused["reason"]
    (tmp_path / "toy.py").write_text(TASK)  # the same run can be repeated after a correction
    assert toy()[0] == 0


def test_numbers_of_numpy_are_stored_as_numbers(toy: Toy, tmp_path: Path) -> None:
    numpy = TASK.replace("import torch\n", "import numpy as np\nimport torch\n", 1)
    numpy = numpy.replace(VIEWS, "max_train_axis = np.int64(8)\n    gate = np.float32(50)")
    (tmp_path / "toy.py").write_text(numpy.replace("value, 5, 0.1, 8", "value, np.int64(5)"))
    assert toy()[0] == 0
    content, folder = record(tmp_path)
    assert (content["max_train_axis"], content["gate"]) == (8, 50.0)
    assert toy() == (0, [])  # finished
    assert json.loads((folder / "run.json").read_text()) == content


@pytest.mark.parametrize("batch", ["torch.full((2, 8), -100)", "torch.ones(2, 0).long()"])
def test_a_batch_without_targets_is_no_training(batch: str, toy: Toy, tmp_path: Path) -> None:
    tokens = "torch.ones(2, 8, dtype=torch.long)"
    code = TASK.replace(f"{tokens}, {tokens}", f"torch.ones({batch}.shape).long(), {batch}")
    (tmp_path / "toy.py").write_text(code)
    assert toy()[0] == 2
    assert "the batch of step 0 has no target" in record(tmp_path)[0]["reason"]


@pytest.mark.parametrize(
    ("later", "sentence"),
    [
        ("torch.full((2, 8), -100)", "the batch of step 1 has no target, so it trains nothing"),
        ("torch.ones(2, 9).long()", "the batch of step 1 has 9 tokens and `train_length` is 8"),
    ],
)
def test_every_batch_is_checked(
    later: str, sentence: str, toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = TASK.replace(
        "        return Batch(torch.ones(2, 8",
        f"        if step:\n            return Batch(torch.ones({later}.shape).long(), {later})\n"
        "        return Batch(torch.ones(2, 8",
    )
    (tmp_path / "toy.py").write_text(code)
    assert toy()[0] == (0 if "-100" in later else 2)
    assert sentence in " ".join(capsys.readouterr().err.split())
