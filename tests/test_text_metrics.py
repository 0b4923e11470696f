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
from pe_bench.tasks.scrolls.text_metrics import exact_match, normalize_answer, score, token_f1

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("PE_BENCH_DATA", ROOT.parent / "shared" / "data"))
CASES = DATA / "scrolls" / "metric_cases.json"


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
    predictions = {"x": "cat sat", "y": "dog", "z": "emu"}
    references = {"z": ["ant"], "x": ["no", "cat ran off"], "y": ["Dog!"]}
    (f1,) = score("f1", predictions, references)
    assert (f1.metric, f1.n) == ("f1", 3)
    assert f1.value == pytest.approx(100 * (0.4 + 1 + 0) / 3)
    assert f1.stderr == pytest.approx(statistics.stdev([40, 100, 0]) / math.sqrt(3))
    (em,) = score("em", predictions, references)
    assert em.value == pytest.approx(100 / 3)


def test_rouge_takes_the_best_reference_for_each_type_on_its_own() -> None:
    # R1, R2, RL of x: 2/3, 0, 1/3 against the first reference, 1/2, 1/3, 1/2 against the second.
    predictions = {"x": "a b", "y": "p q"}
    references = {"x": ["b a x y", "a b c d e f"], "y": ["p q"]}
    scores = {item.metric: item.value for item in score("rgm", predictions, references)}
    assert list(scores) == ["rouge1", "rouge2", "rougeL", "rgm"]
    rouge1, rouge2, rouge_l = (2 / 3 + 1) / 2, (1 / 3 + 1) / 2, (1 / 2 + 1) / 2
    assert scores["rouge1"] == pytest.approx(100 * rouge1)
    assert scores["rouge2"] == pytest.approx(100 * rouge2)
    assert scores["rougeL"] == pytest.approx(100 * rouge_l)
    assert scores["rgm"] == pytest.approx(100 * (rouge1 * rouge2 * rouge_l) ** (1 / 3))


def test_rgm_standard_error_is_the_delta_method_for_many_examples() -> None:
    texts = ["one two three four", "one two nine four", "four three two one", "one two three"]
    predictions = {str(i): texts[i % 4] for i in range(400)}
    references = {str(i): [texts[0]] for i in range(400)}
    scores = score("rgm", predictions, references)
    each = [score("rgm", {"x": text}, {"x": [texts[0]]})[:3] for text in texts]
    means = [item.value for item in scores[:3]]
    rgm = scores[3]
    # d rgm / d mean_k = rgm / (3 mean_k)
    influence = [
        rgm.value / 3 * sum(one.value / mean for one, mean in zip(example, means, strict=True))
        for example in each
    ]
    expected = statistics.stdev(influence * 100) / math.sqrt(400)
    assert rgm.stderr == pytest.approx(expected, rel=0.01)


def test_rgm_is_zero_with_zero_error_when_no_bigram_ever_matches() -> None:
    rgm = score("rgm", {"x": "a c", "y": "c b"}, {"x": ["a b"], "y": ["a b"]})[-1]
    assert (rgm.value, rgm.stderr) == (0, 0)


def test_rouge_compares_words_not_stems() -> None:
    assert score("rgm", {"x": "walked dogs"}, {"x": ["walks dog"]})[0].value == 0


def test_one_example_has_no_standard_error() -> None:
    assert math.isnan(score("em", {"x": "a b"}, {"x": ["b"]})[0].stderr)


@pytest.mark.skipif(not CASES.is_file(), reason=f"no metric cases at {CASES}")
def test_equals_the_official_values() -> None:
    cases = json.loads(CASES.read_text(encoding="utf-8"))
    for name, case in cases.items():
        metric: Any = "rgm" if "rgm" in case["expected"] else next(iter(case["expected"]))
        scores = score(metric, case["predictions"], case["references"])
        values = {item.metric: item.value for item in scores}
        assert values == pytest.approx(case["expected"], rel=0, abs=1e-6), name


@pytest.mark.parametrize(
    ("metric", "predictions", "references", "message"),
    [
        ("bleu", {"x": "a"}, {"x": ["a"]}, "unknown metric 'bleu'"),
        ("f1", {}, {}, "nothing to score"),
        ("f1", {"x": "a"}, {"x": ["a"], "y": ["b"]}, "'y' has no prediction"),
        ("f1", {"x": "a", "y": "b"}, {"x": ["a"]}, "'y' has no reference"),
        ("f1", {"x": "a"}, {"x": []}, "'x' needs a list"),
        ("em", {"x": "a"}, {"x": "abc"}, "'x' needs a list"),
        ("em", {"x": None}, {"x": ["abc"]}, "'x' is None"),
    ],
)
def test_bad_input(metric: Any, predictions: Any, references: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        score(metric, predictions, references)


@pytest.mark.slow
def test_evaluate_loads_the_module_offline_both_ways(tmp_path: Path) -> None:
    script = """if True:
        import json, sys
        import evaluate
        from pe_bench.errors import InputError
        from pe_bench.tasks.scrolls.evaluate_metric import LongDocumentMetric

        inputs = dict(predictions=["a b", "p q"], references=[["b a", "a b c d e f"], ["p q"]])
        values = {}
        for name in ("f1", "em", "rgm"):
            loaded = evaluate.load(sys.argv[1], name).compute(**inputs)
            assert loaded == LongDocumentMetric(config_name=name).compute(**inputs)
            values |= loaded
        try:
            LongDocumentMetric()
        except InputError as error:
            values["error"] = str(error)
        print(json.dumps(values))
    """
    offline = {f"HF_{name}_OFFLINE": "1" for name in ("HUB", "DATASETS", "EVALUATE")}
    done = subprocess.run(
        [sys.executable, "-c", script, str(ROOT / "tasks" / "scrolls" / "evaluate_metric.py")],
        env={**os.environ, **offline, "HF_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout)
    # "a" is an article, so the first prediction is "b": equal to its first reference.
    assert (values["f1"], values["em"]) == (100, 100)
    assert values["rouge2"] == pytest.approx(100 * (1 / 3 + 1) / 2)
    assert list(values) == ["f1", "em", "rouge1", "rouge2", "rougeL", "rgm", "error"]
    assert "'default'" in values["error"]
