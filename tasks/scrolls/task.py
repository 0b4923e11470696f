"""SCROLLS, seven tasks on long documents: fine-tune, generate, score (Shaham 2022, 2201.03533)."""

import hashlib
import re
import statistics
import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from pe_bench.api import (
    IGNORE,
    Batch,
    Column,
    DataError,
    Decoder,
    Evaluation,
    Headline,
    InputError,
    Items,
    Journal,
    Measurement,
    Place,
    Preset,
    Sampling,
    Task,
    TaskContext,
    Tokenizer,
    TrainConfig,
    generate,
    log_likelihoods,
    mean_of,
    progress,
)
from pe_bench.tasks.scrolls import miniature
from pe_bench.tasks.scrolls.documents import Record, Records, open_split, write_split
from pe_bench.tasks.scrolls.prompts import PaperFormat, StrictFormat
from pe_bench.tasks.scrolls.text_metrics import ROUGE_TYPES, Metric
from pe_bench.text.arrow import quiet_library
from pe_bench.text.download import hub_file

HUB_REPOSITORY = "tau/scrolls"
TOKENS_PER_FORWARD = 65_536
HELD_OUT = 0.05  # of the training examples, where learning rates are chosen
TAIL = 1000  # characters by which inputs with one document are known
DOCUMENT_END = 1000  # characters of an input, whose end is the document, that tell documents apart

Scores = npt.NDArray[np.float64]
Clusters = npt.NDArray[np.integer]


class Subset(NamedTuple):
    """One of the seven."""

    metric: Metric
    miniature: str  # what the built-in documents of this kind are called
    summary: bool = False  # the output is a text of some length
    sampling: Sampling | None = None  # of protocol paper


SUBSETS = {
    "qasper": Subset("f1", "paper question"),
    "contract_nli": Subset("em", "inference"),
    "narrative_qa": Subset("f1", "story question"),
    "quality": Subset("em", "multiple choice"),
    "qmsum": Subset("rgm", "meeting query", True, Sampling(top_k=3)),
    "summ_screen_fd": Subset("rgm", "screenplay", True, Sampling(top_k=3)),
    "gov_report": Subset("rgm", "report", True, Sampling(top_k=50)),
}


class Scrolls(Task):
    """Fine-tunes the language model of `perplexity` on each subset, from the same checkpoint.

    Scores are for the validation split, whose labels are public: token F1 (qasper, narrative_qa),
    exact match (contract_nli, quality) and the geometric mean of ROUGE-1, 2 and L (the rest), as
    the official script computes them. The SCROLLS score is their mean.

    A row is `BOS input SEP output EOS`, the input cut at the end to fit, the loss on what follows
    SEP. quality also has the accuracy of the likeliest option (`accuracy`, and `accuracy_per_byte`
    with log-likelihoods divided by length): an exact match of free text below chance says little.

    | | protocol strict | protocol paper (the recipe of the TAPE paper) |
    |---|---|---|
    | before the output | SEP | a second BOS |
    | summaries | as the others | framed by an instruction, its tail appended in any case |
    | words of the input | 20,000 | 20,000 in training, 15,000 in evaluation |
    | decoding | greedy | summaries are sampled, with a seed (published: without) |
    | precision | the same for all | as strict (published: baselines had another one) |

    Args:
        answer_tokens: longest answer.
        summary_tokens: longest summary.
        items: number of validation examples of each subset, spread evenly; 0: all.
    """

    headline = Headline("score", "all")
    all_subsets = tuple(SUBSETS)
    views = tuple(Column(n, subset.metric) for n, subset in SUBSETS.items())
    axes = {"length": "median tokens of the whole inputs", "second": ""}
    protocols = ("strict", "paper")
    check_options = {"items": 4}
    starts_from = "perplexity"
    trains_each_subset = True
    presets = {
        "quick": Preset(
            TrainConfig(steps=120, batch_size=4, length=416, lr=1e-3, warmup=0.1),
            options={"answer_tokens": 32, "summary_tokens": 96, "items": 24},
        ),
        "small": Preset(
            TrainConfig(steps=300, batch_size=16, length=4096, lr=1e-4, warmup=0.1, micro_batch=8),
            options={"answer_tokens": 128, "summary_tokens": 512, "items": 200},
        ),
        "paper": Preset(
            TrainConfig(
                steps=1000,
                batch_size=64,
                micro_batch=2,
                length=8192,
                lr=1e-5,
                schedule="linear",
                warmup=0.1,
            ),
            options={"answer_tokens": 200, "summary_tokens": 1000},
        ),
    }

    def __init__(
        self,
        context: TaskContext,
        *,
        answer_tokens: int = 200,
        summary_tokens: int = 1000,
        items: int = 0,
    ) -> None:
        super().__init__(context)
        assert context.start is not None  # there is a `starts_from`
        assert isinstance(context.start.vocabulary, Tokenizer)
        self.vocabulary = self.tokenizer = context.start.vocabulary
        self.limits = {True: summary_tokens, False: answer_tokens}
        self.items = items
        for limit in self.limits.values():
            if not 0 < limit < self.length - 64:
                raise InputError(
                    f"an output of {limit} tokens leaves too little of --train.length "
                    f"{self.length} for the input: ask for less output or train longer sequences"
                )
        self.format = (StrictFormat if context.protocol == "strict" else PaperFormat)(
            self.tokenizer
        )
        self.data = self._open(self.subsets)
        self.subsets = tuple(self.data)
        texts = "".join(r.sha256 for pair in self.data.values() for r in pair)
        self.fingerprint = hashlib.sha256(texts.encode()).hexdigest()
        self.data_label = "builtin" if self._builtin else f"scrolls-{self.fingerprint[:8]}"
        self._encoded = lru_cache(maxsize=1024)(self._encode)
        self._border = lru_cache(maxsize=None)(self._find_border)

    @property
    def _builtin(self) -> bool:
        return self.context.data is None and self.context.preset == "quick"

    def _open(self, chosen: tuple[str, ...]) -> dict[str, tuple[Records, Records]]:
        opened, unavailable = {}, {}
        folders = {name: self.context.data or self._fetch(name) for name in chosen}
        for name, folder in folders.items():
            try:
                opened[name] = (
                    open_split(folder, name, "train", self.context.cache),
                    open_split(folder, name, "validation", self.context.cache),
                )
            except InputError as error:
                unavailable[name] = str(error)
        if not opened:
            raise DataError(f"no data for any subset: {next(iter(unavailable.values()))}")
        self.unavailable = unavailable
        return opened

    def _fetch(self, name: str) -> Path:
        """The folder with a subset where the user gave none."""
        if not self._builtin:
            return hub_file(HUB_REPOSITORY, f"{name}.zip", cache=self.context.cache / "hub").parent
        # Written in the official layout, so that nothing after this differs from real data.
        length = max(300, min(4000, self.length - self.limits[SUBSETS[name].summary] - 8))
        version = hashlib.sha256(Path(miniature.__file__).read_bytes()).hexdigest()[:8]
        folder = self.context.cache / "builtin" / f"{version}-{length}"
        for split, n in (("train", 600), ("validation", 24)):
            path = folder / name / f"{split}.jsonl"
            if not path.exists():
                rows = miniature.rows(SUBSETS[name].miniature, split, n, length=length)
                write_split(path, rows)
        return folder

    def _limit(self, name: str) -> int:
        return self.limits[SUBSETS[name].summary]

    def _encode(self, name: str, index: int, reference: int) -> tuple[list[int], list[int]]:
        """Prompt and output of a training example."""
        record = self.data[name][0][index]
        limit = self._limit(name)
        prompt = self.format.prompt(
            record.input, self.length - limit, SUBSETS[name].summary, training=True
        )
        output = record.outputs[reference % len(record.outputs)]
        return prompt, self.format.output(output, limit)

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        assert subset is not None  # every subset is trained on its own
        size, total = self.train.batch_size, self._border(subset)
        rows = []
        for position in range(step * size, (step + 1) * size):
            epoch, place = divmod(position, total)
            index = int(_order(total, seed, epoch)[place])
            rows.append(self._encoded(subset, index, epoch + index))  # references take turns
        return self._padded(rows)

    def held_out_batch(self, subset: str | None, step: int) -> Batch:
        """Return examples of the last training documents, which `batch` leaves out."""
        assert subset is not None
        border = self._border(subset)
        size, total = self.train.batch_size, len(self.data[subset][0]) - border
        rows = []
        for position in range(step * size, (step + 1) * size):
            epoch, place = divmod(position, total)
            rows.append(self._encoded(subset, border + place, epoch + border + place))
        return self._padded(rows)

    def _find_border(self, subset: str) -> int:
        """Return the place of the first held-out training example; their number: there are none.

        Those of one document stand together in the files, and are held out together.
        """
        records = self.data[subset][0]
        if not self.context.hold_out:
            return len(records)
        border = min(int((1 - HELD_OUT) * len(records)), len(records) - 1)
        while border and records[border - 1].input[-TAIL:] == records[border].input[-TAIL:]:
            border -= 1
        if not border:
            raise InputError(
                f"the training examples of {subset} are all of one document, so that none can be "
                "held back: leave out --tune or give more documents"
            )
        return border

    def _padded(self, rows: list[tuple[list[int], list[int]]]) -> Batch:
        size = len(rows)
        longest = max(len(prompt) + len(output) for prompt, output in rows) - 1
        tokens = torch.full((size, longest), self.tokenizer.pad)
        targets = torch.full((size, longest), IGNORE)
        for row, (prompt, output) in enumerate(rows):
            ids = torch.tensor([*prompt, *output])
            tokens[row, : len(ids) - 1] = ids[:-1]
            targets[row, len(prompt) - 1 : len(ids) - 1] = ids[len(prompt) :]
        return Batch(tokens, targets)

    def evaluate(self, model: Decoder, subset: str, seed: int, journal: Journal) -> Evaluation:
        records = self._evaluated(subset)
        kind, strict = SUBSETS[subset], self.context.protocol == "strict"
        size = max(1, TOKENS_PER_FORWARD // self.length)
        with progress(f"{subset} · generate", len(records), unit="item") as bar:
            for first in range(0, len(records), size):
                some = records[first : first + size]
                if some[-1].id not in journal.items:
                    sampling = None if strict else kind.sampling
                    if sampling:
                        sampling = Sampling(sampling.top_k, sampling.top_p, seed + first)
                    journal.add(self._answers(model, subset, some, sampling))
                bar.update(len(some))
        answers = {record.id: journal.items[record.id] for record in records}
        length = round(statistics.median(answer["tokens"] for answer in answers.values()))
        values = load_metric(kind.metric, self.context.cache).compute(
            predictions=[answer["prediction"] for answer in answers.values()],
            references=[record.outputs for record in records],
            per_example=True,
        )
        documents: dict[str, int] = {}
        for record in records:
            documents.setdefault(record.input[-DOCUMENT_END:], len(documents))
        clusters = np.array([documents[record.input[-DOCUMENT_END:]] for record in records])
        items = _accuracies(subset, list(answers.values()), clusters, length)
        items += _items(subset, kind.metric, 100 * values["per_example"], clusters, length)
        return Evaluation([each.row() for each in items], items=items)

    def _answers(
        self, model: Decoder, subset: str, records: list[Record], sampling: Sampling | None
    ) -> dict[str, Any]:
        """What the journal keeps of each record."""
        limit, summary = self._limit(subset), SUBSETS[subset].summary
        prompts = [
            self.format.prompt(r.input, self.length - limit, summary, training=False)
            for r in records
        ]
        generated = generate(
            model,
            prompts,
            max_new_tokens=limit,
            end=self.tokenizer.eos,
            sampling=sampling,
        )
        answers: dict[str, Any] = {}
        for record, prompt, ids in zip(records, prompts, generated, strict=True):
            answers[record.id] = {
                "prediction": self.tokenizer.decode(ids).strip(),
                "tokens": len(self.tokenizer.encode(record.input)),
            }
            if self.context.protocol == "strict" and (options := _options(record.input)):
                chosen = self._likeliest(model, prompt, options, limit)
                answers[record.id] |= {
                    key: options[choice] in record.outputs for key, choice in chosen.items()
                }
        return answers

    def _likeliest(
        self, model: Decoder, prompt: list[int], options: list[str], limit: int
    ) -> dict[str, int]:
        """The option of the highest log-likelihood, and of the highest per byte of its text."""
        outputs = [self.format.output(option, limit) for option in options]
        whole = log_likelihoods(model, prompt, outputs)
        sizes = [max(1, len(option.encode())) for option in options]
        per_byte = [nats / size for nats, size in zip(whole, sizes, strict=True)]
        return {
            "accuracy": whole.index(max(whole)),
            "accuracy_per_byte": per_byte.index(max(per_byte)),
        }

    def _evaluated(self, subset: str) -> list[Record]:
        records = self.data[subset][1]
        total = len(records)
        wanted = min(self.items, total) if self.items else total
        return [records[i * total // wanted] for i in range(wanted)]

    def summarize(self, measured: list[Measurement]) -> list[Measurement]:
        """Return the SCROLLS score, partial where some of the seven are missing."""
        main = [row for row in measured if row.metric == SUBSETS[row.subset].metric]
        if not main:
            return []
        mean = mean_of("all", main, "ranked" if len(main) == len(SUBSETS) else "partial")
        value = statistics.fmean(row.value for row in main)
        return [replace(mean, metric="score", value=value, n=len(main))]

    def provenance(self) -> dict[str, Any]:
        return {
            "label": self.data_label,
            "folder": str(self.context.data) if self.context.data else None,
            "files": {
                f"{name}/{split}": records.sha256
                for name, pair in self.data.items()
                for split, records in zip(("train", "validation"), pair, strict=True)
            },
            "start": self.context.start.provenance() if self.context.start else None,
        }


@lru_cache
def load_metric(name: Metric, cache: Path) -> Any:
    """Load the package's metric by `evaluate`, without a network; its files go into a cache."""
    with quiet_library(cache):
        import evaluate  # late, as `datasets` is

        from pe_bench.tasks.scrolls import evaluate_metric

        folder = cache / "evaluate"
        if "evaluate_modules" not in sys.modules:
            # Python imports the copies that `evaluate` makes of metrics from one folder only.
            evaluate.config.HF_MODULES_CACHE = str(folder / "modules")
        path = str(evaluate_metric.__file__)
        return evaluate.load(path, name, cache_dir=str(folder), keep_in_memory=True)


def _options(text: str) -> list[str]:
    """The four options of a multiple-choice question, empty where there are none."""
    pattern = r"\n\n \(A\) (.*?)\n \(B\) (.*?)\n \(C\) (.*?)\n \(D\) (.*?)\n\n"
    found = re.search(pattern, text[:20_000], re.DOTALL)
    return list(found.groups()) if found else []


def _items(
    subset: str, metric: Metric, scores: Scores, clusters: Clusters, length: int
) -> list[Items]:
    """Return the scores of examples, (N, 1) or (N, ROUGE types), by metric."""
    place = Place("all", "score")
    if metric != "rgm":
        found = Items(subset, metric, scores[:, 0], length=length, clusters=clusters)
        return [replace(found, groups=(place,))]
    found = Items(subset, "rgm", scores, length=length, clusters=clusters, groups=(place,))
    parts = []
    for name, column in zip(ROUGE_TYPES, scores.T, strict=True):
        parts.append(replace(found, metric=name, values=column, groups=()))
    return [*parts, replace(found, combine="geometric mean")]


def _accuracies(
    subset: str, answers: list[dict[str, Any]], clusters: Clusters, length: int
) -> list[Items]:
    """Return which options are the likeliest, of examples that have options."""
    items = []
    for metric in ("accuracy", "accuracy_per_byte"):
        chosen = np.array([place for place, answer in enumerate(answers) if metric in answer])
        if len(chosen):
            correct = np.array([100.0 * answers[place][metric] for place in chosen])
            found = Items(subset, metric, correct, length=length, clusters=clusters[chosen])
            items.append(found)
    return items


@lru_cache(maxsize=8)
def _order(total: int, seed: int, epoch: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
    return np.random.default_rng([seed, epoch]).permutation(total)
