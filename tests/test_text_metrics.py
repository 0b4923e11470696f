"""Scores against hand-computed values, the official values on real data, and `evaluate`."""

import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pe_bench.errors import InputError
from pe_bench.tasks.scrolls.official_scores import load_metric
from pe_bench.tasks.scrolls.text_metrics import (
    ROUGE_TYPES,
    exact_match,
    normalize_answer,
    score,
    token_f1,
)

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Cat,\tan ANT\n", "cat ant"),
        ("a.b", "ab"),  # punctuation goes before articles, so this "a" is not a word
        ("the-end", "theend"),
        ("“the” naïve", "“ ” naïve"),  # only ASCII punctuation goes
        ("The", ""),
    ],
)
def test_normalisation(text: str, expected: str) -> None:
    assert normalize_answer(text) == expected


@pytest.mark.parametrize(
    ("prediction", "reference", "f1", "em"),
    [
        ("The cat.", "cat", 1.0, 1.0),
        ("cat sat", "cat ran off", 0.4, 0.0),  # P 1/2, R 1/3
        ("cat cat cat", "cat cat dog", 2 / 3, 0.0),  # a repeated word counts twice, not thrice
        ("", "", 0.0, 1.0),
        ("dog", "", 0.0, 0.0),
    ],
)
def test_one_pair(prediction: str, reference: str, f1: float, em: float) -> None:
    assert token_f1(prediction, reference) == pytest.approx(f1)
    assert exact_match(prediction, reference) == em


def test_the_best_reference_counts_and_the_mean_has_a_standard_error() -> None:
    predictions = ["cat sat", "dog", "emu"]
    references = [["no", "cat ran off"], ["Dog!"], ["ant"]]
    assert score("f1", predictions, references) == pytest.approx(
        {
            "f1": 100 * (0.4 + 1 + 0) / 3,
            "f1_stderr": statistics.stdev([40, 100, 0]) / math.sqrt(3),
        }
    )
    assert score("em", predictions, references)["em"] == pytest.approx(100 / 3)


@pytest.mark.slow
def test_rouge_takes_the_best_reference_for_each_type_on_its_own() -> None:
    # R1, R2, RL of the first: 2/3, 0, 1/3 against one reference, 1/2, 1/3, 1/2 against the other.
    scores = score("rgm", ["a b", "p q"], [["b a x y", "a b c d e f"], ["p q"]])
    assert list(scores)[::2] == ["rouge1", "rouge2", "rougeL", "rgm"]
    assert list(scores)[1::2] == [f"{name}_stderr" for name in list(scores)[::2]]
    rouge1, rouge2, rouge_l = (2 / 3 + 1) / 2, (1 / 3 + 1) / 2, (1 / 2 + 1) / 2
    assert scores["rouge1"] == pytest.approx(100 * rouge1)
    assert scores["rouge2"] == pytest.approx(100 * rouge2)
    assert scores["rougeL"] == pytest.approx(100 * rouge_l)
    assert scores["rgm"] == pytest.approx(100 * (rouge1 * rouge2 * rouge_l) ** (1 / 3))


@pytest.mark.slow
def test_rgm_standard_error_is_the_delta_method_for_many_examples() -> None:
    texts = ["one two three four", "one two nine four", "four three two one", "one two three"]
    scores = score("rgm", texts * 100, [[texts[0]]] * 400)
    each = [score("rgm", [text], [[texts[0]]]) for text in texts]
    # d rgm / d mean_k = rgm / (3 mean_k)
    influence = [
        scores["rgm"] / 3 * sum(one[name] / scores[name] for name in ROUGE_TYPES) for one in each
    ]
    expected = statistics.stdev(influence * 100) / math.sqrt(400)
    assert scores["rgm_stderr"] == pytest.approx(expected, rel=0.01)


@pytest.mark.slow
def test_rgm_is_zero_with_zero_error_when_no_bigram_ever_matches() -> None:
    scores = score("rgm", ["a c", "c b"], [["a b"], ["a b"]])
    assert (scores["rgm"], scores["rgm_stderr"]) == (0, 0)


@pytest.mark.slow
def test_rouge_compares_words_not_stems() -> None:
    assert score("rgm", ["walked dogs"], [["walks dog"]])["rouge1"] == 0


def test_one_example_has_no_standard_error() -> None:
    assert math.isnan(score("em", ["a b"], [["b"]])["em_stderr"])


@pytest.mark.slow
def test_equals_the_official_values(real_documents: Path, tmp_path: Path) -> None:
    cases = json.loads((real_documents / "scrolls" / "metric_cases.json").read_text("utf-8"))
    for name, case in cases.items():
        metric: Any = "rgm" if "rgm" in case["expected"] else next(iter(case["expected"]))
        predictions = list(case["predictions"].values())
        references = [case["references"][id_] for id_ in case["predictions"]]
        values = score(metric, predictions, references)
        assert {key: values[key] for key in case["expected"]} == pytest.approx(
            case["expected"], rel=0, abs=1e-6
        ), name
        loaded = load_metric(metric, tmp_path)
        assert loaded.compute(predictions=predictions, references=references) == values


@pytest.mark.parametrize(
    ("metric", "predictions", "references", "message"),
    [
        ("bleu", ["a"], [["a"]], "unknown metric 'bleu'"),
        ("f1", [], [], "0 predictions and 0 lists"),
        ("f1", ["a"], [["a"], ["b"]], "1 predictions and 2 lists"),
        ("f1", ["a", "b"], [["a"], []], "references 1 must be a list"),
        ("em", ["a"], ["abc"], "references 0 must be a list"),
        ("em", [None], [["abc"]], "prediction 0 is None"),
    ],
)
def test_bad_input(metric: Any, predictions: Any, references: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        score(metric, predictions, references)


@pytest.mark.slow
def test_evaluate_loads_the_module_offline_both_ways(tmp_path: Path) -> None:
    script = """if True:
        import json, socket, sys
        from pathlib import Path
        def refuse(*address): raise AssertionError(f"asked the network for {address}")
        socket.socket.connect = socket.getaddrinfo = refuse
        import evaluate
        from pe_bench.errors import InputError
        from pe_bench.tasks.scrolls.evaluate_metric import LongDocumentMetric
        from pe_bench.tasks.scrolls.official_scores import load_metric

        inputs = dict(predictions=["a b", "p q"], references=[["b a", "a b c d e f"], ["p q"]])
        values = {}
        for name in ("f1", "em", "rgm"):
            values |= load_metric(name, Path(sys.argv[2])).compute(**inputs)
            loaded = evaluate.load(sys.argv[1], name).compute(**inputs)
            assert loaded == LongDocumentMetric(config_name=name).compute(**inputs)
            assert loaded == {key: values[key] for key in loaded}
        try:
            LongDocumentMetric()
        except InputError as error:
            values["error"] = str(error)
        print(json.dumps(values))
    """
    module = ROOT / "tasks" / "scrolls" / "evaluate_metric.py"
    done = subprocess.run(
        [sys.executable, "-c", script, str(module), str(tmp_path / "cache")],
        env={**os.environ, "HF_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout)
    # "a" is an article, so the first prediction is "b": equal to its first reference.
    assert (values["f1"], values["em"]) == (100, 100)
    assert values["rouge2"] == pytest.approx(100 * (1 / 3 + 1) / 2)
    names = [name for name in values if not name.endswith("_stderr")]
    assert names == ["f1", "em", "rouge1", "rouge2", "rougeL", "rgm", "error"]
    assert "'default'" in values["error"]
    assert not list((tmp_path / "cache").rglob("*.py"))  # no code is copied there
