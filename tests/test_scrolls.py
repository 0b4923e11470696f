"""The seven subsets: formats, batches, scores, resume, and the real documents."""

import dataclasses
import json
import shutil
import statistics
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Oracle, check_items, measure

from pe_bench.config import IGNORE
from pe_bench.decoder.generation import generate
from pe_bench.decoder.model import Decoder
from pe_bench.errors import InputError
from pe_bench.registry import plugins
from pe_bench.results.journal import Journal
from pe_bench.results.measurement import Measurement
from pe_bench.results.splits import ID, OOD
from pe_bench.runs.options import RunOptions
from pe_bench.runs.resolve import ResolvedTask, resolve
from pe_bench.runs.sources import find_user_paths
from pe_bench.runs.tuning import Tuning
from pe_bench.task import Batch
from pe_bench.tasks.scrolls import answers, miniature, multiple_choice, splits
from pe_bench.tasks.scrolls.baselines import find_candidates, words_of_answers
from pe_bench.tasks.scrolls.builtin_rows import FACTS, OPTIONS_EVERY
from pe_bench.tasks.scrolls.documents import Record, write_split
from pe_bench.tasks.scrolls.multiple_choice import likeliest, options_of
from pe_bench.tasks.scrolls.output_limits import check_limits
from pe_bench.tasks.scrolls.prompts import PaperFormat, StrictFormat, first_tokens, first_words
from pe_bench.tasks.scrolls.subsets import SUBSETS
from pe_bench.tasks.scrolls.task import Scrolls
from pe_bench.text.tokenizer import ByteTokenizer

TOKENS = ByteTokenizer()
BOS, EOS, SEP = TOKENS.bos, TOKENS.eos, TOKENS.sep
OPTIONS = RunOptions(model={"layers": 1})


Stage = Callable[..., Any]


@pytest.fixture
def stage(cache_folder: Path) -> Stage:
    def make(spec: str = "scrolls", **changes: Any) -> ResolvedTask:
        changes = {"cache": cache_folder} | changes
        return resolve(dataclasses.replace(OPTIONS, **changes), spec)

    return make


@pytest.fixture(scope="session")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write documents in the official layout, as given by a user."""
    folder = tmp_path_factory.mktemp("given")
    for name, subset in SUBSETS.items():
        for split, n in (("train", 40), ("validation", 8)):
            records = miniature.rows(subset.miniature, split, n, 100, questions=2)
            if name == "narrative_qa":  # a second reference
                records += [{**row, "output": f"the old {row['output']}"} for row in records]
            write_split(folder / name / f"{split}.jsonl", records)
    return folder


def write_texts(folder: Path) -> Path:
    """Write a corpus to pre-train on, with its splits."""
    for split in ("train", "test"):
        (folder / split).mkdir(parents=True)
        (folder / split / "a.txt").write_text(f"{split}: {' and so on' * 500}")
    return folder


def untrained(stage: ResolvedTask) -> Decoder:
    return stage.make_model(plugins.load("encoding", "rope"), 0).eval()


@pytest.mark.slow
def test_damaged_builtin_documents_are_written_again(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = stage(cache=tmp_path, subsets=("qasper",)).digest()
    path = next((tmp_path / "builtin").glob("*/qasper/train.jsonl"))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-2]))
    assert stage(cache=tmp_path, subsets=("qasper",)).digest() == first
    assert f"{path} has changed since it was written" in capsys.readouterr().err
    assert path.read_bytes() == b"".join(lines)


def test_strict_format_is_one_format_for_training_and_evaluation() -> None:
    form = StrictFormat(TOKENS)
    for training in (True, False):
        assert form.prompt("abc", 9, False, training) == [BOS, 97, 98, 99, SEP]
    assert form.prompt("abcdefgh", 5, True, True) == [BOS, 97, 98, 99, SEP]  # cut at the end
    assert form.output("yes", 9) == [*b"yes", EOS]
    assert form.output("yes", 3) == [*b"ye", EOS]


def test_paper_format_has_the_lengths_of_the_published_recipe() -> None:
    form = PaperFormat(TOKENS)
    long = "word " * 30_000
    answer = form.prompt(long, 8192 - 200, False, True)
    assert (len(answer), answer[0]) == (7991, BOS)
    output = form.output("x" * 900, 200)
    assert (len(output), output[0], output[-1]) == (201, BOS, EOS)
    tail = list(b"\n Please summarize this report:")
    summary = form.prompt(long, 8192 - 1000, True, True)
    assert len(summary) == 8192 - 1000 - 1
    assert summary[-len(tail) :] == tail
    short = form.prompt("a report", 8192 - 1000, True, True)
    assert bytes(short[1:]) == b"Context:\na report" + bytes(tail) * 2  # twice, as published
    shortened = [len(form.prompt(long, 10**6, False, training)) for training in (True, False)]
    assert shortened == [1 + 5 * 20_000 - 1, 1 + 5 * 15_000 - 1]  # words of 4, spaces between


def test_first_words_and_tokens() -> None:
    assert first_words("a b  c d", 3) == "a b "
    assert first_words("a b", 5) == "a b"
    text = "ü" * 5000
    assert first_tokens(TOKENS, text, 11) == list(text.encode()[:11])
    assert first_tokens(TOKENS, "ab", 11) == list(b"ab")


@pytest.mark.parametrize("protocol", ["strict", "paper"])
@pytest.mark.parametrize("subset", SUBSETS)
def test_loss_falls_on_the_output_and_on_nothing_else(
    stage: Stage, given: Path, subset: str, protocol: str
) -> None:
    task = stage(protocol=protocol, data={"": given}, subsets=(subset,)).task
    batch = task.batch(subset, seed=1, step=3)
    outputs = {o for record in task.variant.data[subset]["train"] for o in record.outputs}
    assert batch.tokens.shape == batch.targets.shape
    assert batch.tokens.shape[1] < task.length
    for tokens, targets in zip(batch.tokens, batch.targets, strict=True):
        learned = targets[targets != IGNORE]
        assert learned[-1] == EOS
        assert TOKENS.decode(learned.numpy()) in outputs
        first = int((targets != IGNORE).nonzero()[0])
        assert tokens[first] == (SEP if protocol == "strict" else tokens[first])
        assert learned[0] == BOS or protocol == "strict"
        last = int((targets != IGNORE).nonzero()[-1])
        assert torch.equal(tokens[first + 1 : last + 1], targets[first:last])  # next tokens


def test_epochs_go_through_all_examples_and_references_take_turns(
    stage: Stage, given: Path
) -> None:
    """Every epoch uses another reference answer, in training and in held-out batches."""
    task = stage(data={"": given}, subsets=("narrative_qa",), tune=Tuning()).task
    steps = range(2 * len(task.variant.data["narrative_qa"]["train"]) // task.train.batch_size)
    trained = [task.batch("narrative_qa", 0, step) for step in steps]
    assert not torch.equal(task.batch("narrative_qa", 1, 0).targets, trained[0].targets)
    prompts = 0
    for batches in (trained, [task.held_out_batch("narrative_qa", step) for step in range(2)]):
        answers_of: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
        for batch in batches:
            for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
                first = next(i for i, target in enumerate(targets) if target != IGNORE)
                found = answers_of.setdefault(tuple(tokens[: first + 1]), set())
                found.add(tuple(target for target in targets if target != IGNORE))
        prompts += len(answers_of)
        assert all(len(found) == 2 for found in answers_of.values())
    assert prompts == len(task.variant.data["narrative_qa"]["train"])  # each is in one of the two


@pytest.mark.slow
def test_evaluation_is_scored_and_resumed_item_by_item(
    stage: Stage, given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stage("scrolls:items=6,answer_tokens=4", data={"": given})
    model, task = untrained(made), made.task
    monkeypatch.setattr(answers, "TOKENS_PER_FORWARD", 2 * task.length)  # two at a time
    whole = task.evaluate(model, "quality", 0, Journal(tmp_path / "whole.jsonl"))
    calls: list[int] = []

    def killed_after_two_batches(*args: Any, **kwargs: Any) -> Any:
        calls.append(len(args[1]))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return generate(*args, **kwargs)

    monkeypatch.setattr(answers, "generate", killed_after_two_batches)
    with pytest.raises(KeyboardInterrupt):
        task.evaluate(model, "quality", 0, Journal(tmp_path / "cut.jsonl"))
    with (tmp_path / "cut.jsonl").open("a") as file:
        file.write('["torn by a ki')
    resumed = task.evaluate(model, "quality", 0, Journal(tmp_path / "cut.jsonl"))
    assert calls == [2, 2, 2, 2]  # two batches, the one that was cut, and that one again
    assert resumed == whole
    assert [(row.metric, row.n) for row in whole.rows] == [
        ("accuracy", 6), ("accuracy_per_byte", 6), ("em", 6),
    ]  # fmt: skip
    inputs = [len(r.input) for r in made.task.questions.records("quality", "validation")]
    assert whole.rows[0].length == round(statistics.median(inputs))  # inputs are not truncated
    check_items([*whole.rows, *task.summarize(whole.rows)], list(whole.items), tmp_path)


@pytest.mark.slow
def test_errors_are_over_documents(stage: Stage, given: Path, tmp_path: Path) -> None:
    made = stage("scrolls:items=6,summary_tokens=4", data={"": given})
    found = made.task.evaluate(untrained(made), "qmsum", 0, Journal(tmp_path / "j"))
    check_items([*found.rows, *made.task.summarize(found.rows)], list(found.items), tmp_path)
    documents = {
        record.input[-1000:] for record in made.task.questions.records("qmsum", "validation")
    }
    for items in found.items:
        assert items.clusters is not None and len(np.unique(items.clusters)) == len(documents)


def test_likelihoods_are_divided_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiple_choice, "log_likelihoods", lambda *_: [-8.0, -9.0])
    chosen = likeliest(Any, [BOS], ["abc", "äöü"], [[1], [2]])  # type: ignore[arg-type]
    assert chosen == {"accuracy": 0, "accuracy_per_byte": 1}


@pytest.mark.slow
def test_the_score_is_the_mean_of_seven_and_partial_below_seven(stage: Stage, given: Path) -> None:
    task = stage(data={"": given}).task
    rows = [Measurement(n, s.metric, 10.0 * i, 5, 3.0) for i, (n, s) in enumerate(SUBSETS.items())]
    rows.insert(0, Measurement("quality", "accuracy", 99.0, 5, 3.0))
    (score,) = task.summarize(rows)
    assert (score.metric, score.value, score.n) == ("score", 30.0, 7)
    assert score.stderr == pytest.approx(3 * 7**0.5 / 7)
    (partial,) = task.summarize(rows[:-1])
    assert (partial.metric, partial.value, partial.n) == ("score", 25.0, 6)
    assert (score.status, partial.status) == ("ranked", "partial")


@pytest.mark.slow
def test_paper_protocol_samples_summaries_and_nothing_else(
    stage: Stage, given: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: dict[str, Any] = {}

    def note(model: Any, prompts: Any, **how: Any) -> list[list[int]]:
        seen.update(how)
        return [[] for _ in prompts]

    monkeypatch.setattr(answers, "generate", note)
    for protocol in ("strict", "paper"):
        made = stage("scrolls:items=2", protocol=protocol, data={"": given})
        for name, subset in SUBSETS.items():
            if name == "quality" and protocol == "strict":
                continue  # needs a model for the likeliest option
            made.task.evaluate(None, name, 0, Journal(tmp_path / f"{protocol}-{name}"))
            sampled = protocol == "paper" and subset.summary
            assert (seen["sampling"] is not None) == sampled


@pytest.mark.slow
def test_a_broken_subset_is_named_and_the_others_stay(
    stage: Stage, given: Path, tmp_path: Path
) -> None:
    for name in ("qasper", "quality", "qmsum"):
        shutil.copytree(given / name, tmp_path / name)
    broken = tmp_path / "quality" / "train.jsonl"
    broken.write_text(broken.read_text().replace('"output"', "output", 1))
    (tmp_path / "qmsum" / "validation.jsonl").write_text("")
    task = stage(data={"": tmp_path}).task
    assert task.subsets == ("qasper",)
    assert "train.jsonl:1 is not JSON" in task.unavailable["quality"]
    assert "validation.jsonl" in task.unavailable["qmsum"]
    assert "expected" in task.unavailable["gov_report"]
    assert task.data_label.startswith("scrolls-")
    assert task.fingerprint != stage(data={"": given}).task.fingerprint


def test_no_network_is_a_sentence(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(InputError, match=r"--data"):
        stage(preset="small")


@pytest.mark.slow
def test_the_start_has_options_of_its_own(stage: Stage, given: Path, tmp_path: Path) -> None:
    """Each start has one label for any order of its options, and the evaluation is the same."""
    (tmp_path / "texts").mkdir()
    for name in ("pg19", "code"):
        write_texts(tmp_path / "texts" / name)
    data = {"": given, "perplexity": tmp_path / "texts"}
    found = [
        stage(f"scrolls:start={start},items=4", data=data)
        for start in (
            "perplexity:windows=3:corpus=pg19",
            "perplexity:corpus=pg19:windows=3",
            "perplexity:corpus=code:test=pg19+code",
        )
    ]
    first, same, other = found
    assert first.label == "scrolls:start=perplexity:corpus=pg19:windows=3,items=4"
    assert first.digest() == same.digest() != other.digest()
    assert first.start and first.start.label == "perplexity:corpus=pg19,windows=3"
    assert other.start and other.start.task.subsets == ("pg19", "code")
    assert first.task.fingerprint == other.task.fingerprint
    assert first.settings["start"]["options"]["corpus"] == "pg19"


@pytest.mark.slow
def test_real_documents(stage: Stage, real_documents: Path) -> None:
    task = stage(data={"": real_documents / "scrolls"}).task
    assert set(task.unavailable) == {"summ_screen_fd"}
    assert "expected" in task.unavailable["summ_screen_fd"]
    for name in task.subsets:
        assert len(task.batch(name, 0, 0).tokens) == task.train.batch_size
    for record in task.variant.data["quality"]["validation"]:
        options = options_of(record.input)
        assert record.outputs[0] in options
    cases = json.loads((real_documents / "scrolls" / "metric_cases.json").read_text())
    assert set(cases) == set(task.subsets)


@pytest.mark.slow
def test_other_presets_read_the_archives_of_the_hub(
    stage: Stage, given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(repository: str, name: str, *, cache: Path) -> Path:
        assert repository == "tau/scrolls"
        subset = name.removesuffix(".zip")
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for split in ("train", "validation"):
                archive.write(given / subset / f"{split}.jsonl", f"{subset}/{split}.jsonl")
        return tmp_path / name

    monkeypatch.setattr(splits, "hub_file", fetch)
    data = {"perplexity": write_texts(tmp_path / "texts")}
    made = stage(preset="small", data=data, cache=tmp_path / "cache")
    task = made.task
    assert task.variant.tokenizer.name == "bpe:8192"
    assert find_user_paths(made, plugins.load("encoding", "rope"))["tokenizer"] == "bpe:8192"
    assert (task.subsets, task.unavailable) == (tuple(SUBSETS), {})
    assert task.data_label.startswith("scrolls-")
    assert task.fingerprint == stage(data={"": given}).task.fingerprint  # the same documents
    assert task.batch("qmsum", 0, 0).tokens.shape[0] == 16
    assert task.trains_each_subset and task.context.start is not None


@pytest.mark.slow
def test_built_in_documents_train_one_model_from_scratch(stage: Stage) -> None:
    made = stage()
    task = made.task
    assert made.start is None and not task.trains_each_subset
    steps = task.train.steps
    assert kinds_of(task, task.batch(None, seed=1, step=0)) == {"CHAPTER"}
    last = range(steps - len(FACTS) * OPTIONS_EVERY, steps)  # every number of facts, both kinds
    trained = [kinds_of(task, task.batch(None, seed=1, step=step)) for step in last]
    held_out = [kinds_of(task, task.held_out_batch(None, step=step)) for step in range(8)]
    for kinds in (trained, held_out):
        assert {len(some) for some in kinds} == {1, 6}  # with options alone, and without
        assert len(set.union(*kinds)) == 7


def kinds_of(task: Scrolls, batch: Batch) -> set[str]:
    """Check the rows of a batch and return the first words of their documents."""
    eos = task.variant.tokenizer.eos
    kinds = set()
    assert batch.tokens.shape[1] <= task.length
    for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        end = tokens.index(eos)
        document = task.variant.tokenizer.decode(tokens[:end])
        kinds.add(document.split()[0])
        assert targets[:end] == [IGNORE] * end
        # The first question is asked as evaluation asks it.
        start = next(i for i, target in enumerate(targets) if target != IGNORE)
        question, *options = task.variant.tokenizer.decode(tokens[end + 1 : start + 1]).split(
            "\n", 1
        )
        if not options:
            asked = f"{question.strip()}\n\n{document}" if question else document
            assert task.variant.layout.prompt(asked, 0, False, False) == tokens[: start + 1]
        # Only the last answer is shown, and ends in EOS.
        first, *_ = [i for i, target in enumerate(targets) if target == eos]
        assert all(target == IGNORE for target in targets[first + 1 :])
        assert tokens[first] == targets[first - 1]
    return kinds


@pytest.mark.slow
def test_built_in_documents_are_measured_at_three_lengths(stage: Stage, tmp_path: Path) -> None:
    made = stage("scrolls:items=3")
    task = made.task
    known = {}
    for opened in task.variant.data.values():
        for split in [name for name in opened if name != "train"]:
            for record in opened[split]:
                prompt = task.variant.layout.prompt(record.input, 0, False, False)
                known[tuple(prompt)] = [
                    *prompt[1:],
                    *task.variant.layout.output(record.outputs[0], 99),
                ]
    sizes = {len(prompt) for prompt in known}

    def answer(given: list[int]) -> list[int]:
        starts = (tuple(given[:size]) for size in sizes)
        return next(known[start] for start in starts if start in known)

    oracle = Oracle(answer, vocab_size=task.vocabulary.vocab_size, prefix_consistent=False)
    rows = measure(task, oracle, tmp_path)
    assert {row.length for row in rows} == {128, 256, 512}
    assert max(shape[1] for shape in oracle.seen) <= task.max_eval_tokens
    whole = [*rows, *task.summarize(rows)]
    assert all(row.value == pytest.approx(100) for row in whole)
    assert [(r.subset, r.length) for r in whole if r.metric == "score"] == [
        ("all", 128), ("all", 256), ("all", 512), (ID, None), (OOD, None),
    ]  # fmt: skip


@pytest.mark.slow
def test_below_the_gate_nothing_is_ranked_beyond_the_trained_length(stage: Stage) -> None:
    task = stage("scrolls:gate=50").task
    for inside, status in ((49.0, "not_learned"), (50.0, "ranked")):
        rows = []
        for name, subset in SUBSETS.items():
            for length in task.variant.lengths:
                value = inside if length == task.length else 30.0
                rows.append(Measurement(name, subset.metric, value, 5, 3.0, length))
        score = {r.subset: r for r in task.summarize(rows) if r.length is None}
        assert score[OOD].status == status and score[OOD].value == pytest.approx(30)
        assert score[ID].status == "ranked" and score["quality-out-of-distribution"].value == 30
        fewer = [row for row in rows if row.subset != "quality"]
        found = {row.subset: row.status for row in task.summarize(fewer)}
        assert found[OOD] == "partial"


@pytest.mark.slow  # test_miniature.py tries all constant answers, also among the quick tests
def test_nothing_that_reads_no_document_scores_on_built_in_ones(stage: Stage) -> None:
    task = stage().task
    rows: dict[str, dict[Any, Measurement]] = {}
    for name, found in task.baselines().items():
        main = [row for row in found if row.metric in ("em", "f1", "rgm", "score")]
        rows[name] = {(row.subset, row.length): row for row in main}
    assert list(rows) == ["constant answer", "guessing", "random candidate"]
    for name in task.subsets:
        limit = {"contract_nli": 33.4, "quality": 15}.get(name, 15)
        assert all(
            rows["constant answer"][name, length].value <= limit for length in task.variant.lengths
        )
    guessing = rows["guessing"]
    assert guessing["quality", 512].value == pytest.approx(25, abs=6)
    assert guessing["contract_nli", 512].value == pytest.approx(33.3, abs=6)
    assert guessing[OOD, None].value < 15 > rows["constant answer"][OOD, None].value
    candidate = rows["random candidate"]  # one of about a dozen, but for options and labels
    assert 7 < candidate["narrative_qa", 512].value < 15
    assert candidate["quality", 512].value == pytest.approx(25, abs=6)
    assert guessing[OOD, None].value < candidate[OOD, None].value < 20


def test_candidates_are_what_the_words_of_a_document_can_answer() -> None:
    train = [Record("1", "", ("red oak",)), Record("2", "", ("blue, pine",))]
    known = words_of_answers(train)
    assert known == [{"red", "blue"}, {"oak", "pine"}]
    assert find_candidates("Paint jars red pine. Paint keys red oak.", known) == [
        *("red pine", "red oak")
    ]
    assert find_candidates("The pine has red. The oak is blue.", known) == [
        *("red pine", "red oak", "blue pine", "blue oak")
    ]
    assert find_candidates("Nothing of red.", known) == []
    options = "Which?\n\n (A) a\n (B) b\n (C) c\n (D) d\n\nText."
    assert find_candidates(options, known) == ["a", "b", "c", "d"]


@pytest.mark.slow
def test_real_data_have_references_too(stage: Stage, given: Path) -> None:
    references = stage(data={"": given}).task.baselines()
    for rows in references.values():
        assert [row.subset for row in rows if row.metric == "score"] == ["all"]
        assert {row.subset for row in rows} == {*SUBSETS, "all"}


@pytest.mark.slow
def test_titles_say_how_much_is_read_and_what_can_be_scored(stage: Stage, given: Path) -> None:
    whole = stage(data={"": given}, train={"length": 2000}).task
    assert {view.title for view in whole.views} == {""}
    task = stage("scrolls:answer_tokens=4", data={"": given}, train={"length": 140}).task
    titles = {view.subset: view.title for view in task.views}
    inputs = [len(r.input.encode()) for r in task.variant.data["quality"]["validation"]]
    median = round(statistics.median(inputs))
    assert titles["quality"] == f"quality: reads 134 of {median} tokens, at most 0.0"


@pytest.mark.parametrize(
    ("spec", "changes", "message"),
    [
        ("scrolls", {"protocol": "paper"}, "needs the published documents: give them as --data"),
        ("scrolls", {"tokenizer": "bpe:500"}, "no effect on the built-in documents"),
        (
            "scrolls:items=0",
            {},
            "the number of built-in documents is unlimited: give scrolls:items 1 or more",
        ),
        ("scrolls:gate=101", {}, "gate must be a percentage, not 101.0"),
        ("scrolls", {"train": {"length": 55}}, "--train.length 55 is too short"),
    ],
)
def test_what_built_in_documents_refuse(
    stage: Stage, spec: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        stage(spec, **changes)


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "length"), [("scrolls:answer_tokens=80", 140), ("scrolls", 64)])
def test_an_output_leaves_room_for_the_input(
    stage: Stage, given: Path, spec: str, length: int
) -> None:
    with pytest.raises(InputError, match=f"leaves too few of --train.length {length}"):
        stage(spec, data={"": given}, train={"length": length})


@pytest.mark.parametrize(("limit", "fits"), [(0, False), (1, True), (35, True), (36, False)])
def test_the_input_has_at_least_64_tokens(limit: int, fits: bool) -> None:
    with nullcontext() if fits else pytest.raises(InputError, match="leaves too few"):
        check_limits({"quality": 1, "qasper": limit}, 100)
