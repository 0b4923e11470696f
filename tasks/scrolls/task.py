"""SCROLLS, seven tasks on long documents: fine-tune, generate, score (Shaham 2022, 2201.03533)."""

import hashlib
import statistics
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pe_bench.api import (
    HELD_OUT_SEED,
    ID,
    OOD,
    TINY,
    Batch,
    Column,
    Curve,
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
    Status,
    Task,
    TaskContext,
    Tokenizer,
    TrainConfig,
    Turn,
    collate,
    generate,
    mean_of,
    progress,
)
from pe_bench.results.statistics import average
from pe_bench.results.views import View
from pe_bench.system.sealed import read_sealed, recall, write_sealed
from pe_bench.tasks.scrolls import miniature
from pe_bench.tasks.scrolls.builtin_rows import draw_batch
from pe_bench.tasks.scrolls.documents import Record, Records, open_split, write_split
from pe_bench.tasks.scrolls.multiple_choice import accuracies, likeliest, options_of
from pe_bench.tasks.scrolls.official_scores import documents_of, score_answers
from pe_bench.tasks.scrolls.prompts import PaperFormat, QuestionLastFormat, StrictFormat
from pe_bench.tasks.scrolls.references import constant_answer, guesses
from pe_bench.tasks.scrolls.subsets import SUBSETS
from pe_bench.tasks.scrolls.text_metrics import score
from pe_bench.text.download import hub_file

HUB_REPOSITORY = "tau/scrolls"
TOKENS_PER_FORWARD = 65_536
HELD_OUT = 0.05  # of the training examples, where learning rates are chosen


# Of built-in documents.
EVAL_LENGTH_FACTORS = (1, 2, 4)
BUILTIN_TOKENS_PER_FORWARD = 8192

# Of the reference rows, and of limits that follow the references.
REFERENCE_RECORDS = 1000
LIMIT_RECORDS = 200
CANDIDATES = 50
LONG_CANDIDATES = 8
GUESSES = 10


class Scrolls(Task):
    """Fine-tunes a language model on each subset; or trains one on built-in documents.

    Scores are for the validation split, whose labels are public: token F1 (qasper, narrative_qa),
    exact match (contract_nli, quality) and the geometric mean of ROUGE-1, 2 and L (the rest), as
    the official script computes them. The SCROLLS score is their mean. Standard errors are over
    documents.

    | | built-in documents (preset quick without --data) | others |
    |---|---|---|
    | model | trained from scratch | that of the task `perplexity`, fine-tuned |
    | trained | on all seven subsets together | on each subset, from the same start |
    | a row | document, questions, one answer | input, output |
    | measured on | documents of 1, 2 and 4 times the trained length | the input, cut to fit |
    | headline | score beyond the trained length, where `gate` is passed at it | score |

    Built-in documents are piles of facts; an answer is a word or two that only one of them tells.
    The first fifth of the training is about two facts each (`builtin_rows`).
    A row of real data is `BOS input SEP output EOS`, the input cut at the end to fit, the loss on
    what follows SEP. There, quality also has the accuracy of the likeliest option (`accuracy`, and
    `accuracy_per_byte` with log-likelihoods divided by length): an exact match of free text below
    chance says little. Titles of columns say how much of an input is read, and what the references
    themselves would score, cut to the longest output.

    | real data | protocol strict | protocol paper (the recipe of the TAPE paper) |
    |---|---|---|
    | before the output | SEP | a second BOS |
    | summaries | as the others | framed by an instruction, its tail appended in any case |
    | words of the input | 20,000 | 20,000 in training, 15,000 in evaluation |
    | decoding | greedy | summaries are sampled, with a seed (published: without) |
    | precision | the same for all | as strict (published: baselines had another one) |

    Args:
        answer_tokens: longest answer; 0: as the training references need, but at most a quarter of
            `train.length`.
        summary_tokens: longest summary; 0: likewise.
        items: validation examples of each subset (and length), spread evenly; 0: all.
        gate: score at the trained length from which on the headline is ranked; built-in documents
            only.
    """

    headline = Headline("score", "all")
    all_subsets = tuple(SUBSETS)
    protocols = ("strict", "paper")
    check_options = {"items": 4}
    version = 4
    presets = {
        "quick": Preset(
            TrainConfig(
                steps=2500, batch_size=16, length=128, lr=1.5e-3, schedule="linear", beta2=0.99
            ),
            TINY.changed(layers=2, heads=2, init_std=0.05),
            {"answer_tokens": 0, "summary_tokens": 0, "items": 120, "gate": 70.0},
        ),
        "small": Preset(
            TrainConfig(steps=300, batch_size=16, length=4096, lr=1e-4, warmup=0.1, micro_batch=8),
            options={"answer_tokens": 0, "summary_tokens": 0, "items": 200},
            starts_from="perplexity",
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
            starts_from="perplexity",
        ),
    }

    @classmethod
    def preset(cls, name: str, data: Path | None) -> Preset:
        if name != "quick" or data is None:
            return cls.presets[name]
        train = TrainConfig(steps=120, batch_size=4, length=416, lr=1e-3, warmup=0.1)
        return Preset(train, options=cls.presets[name].options, starts_from="perplexity")

    def __init__(
        self,
        context: TaskContext,
        *,
        answer_tokens: int = 200,
        summary_tokens: int = 1000,
        items: int = 0,
        gate: float = 70.0,
    ) -> None:
        super().__init__(context)
        self.check_range(
            answer_tokens=(answer_tokens, 0, 100_000),
            summary_tokens=(summary_tokens, 0, 100_000),
            items=(items, 0, 100_000),
        )
        if not 0 <= gate <= 100:
            raise InputError(f"scrolls:gate is a percentage, not {gate}")
        self.items = items
        self.builtin = context.data is None and context.preset == "quick"
        self.gate = gate if self.builtin else None
        self.trains_each_subset = not self.builtin
        self.tokenizer = self._tokenizer()
        self.vocabulary = self.tokenizer
        self.format = self._format()
        self.lengths = [self.length]
        if self.builtin:
            self._check_builtin()
            self.headline = Headline("score", OOD)
            self.lengths = [factor * self.length for factor in EVAL_LENGTH_FACTORS]
            self.axes = {"length": "tokens of document, question and answer", "second": ""}
        else:
            self.axes = {"length": "tokens read of each input, median", "second": ""}
        self.data = self._open(self.subsets)
        self.subsets = tuple(self.data)
        self.limits = self._limits(answer_tokens, summary_tokens)
        for limit in self.limits.values():
            if not self.builtin and not 0 < limit < self.length - 64:
                raise InputError(
                    f"an output of {limit} tokens leaves too little of --train.length "
                    f"{self.length} for the input: ask for less output or train longer sequences"
                )
        self.data_label = f"builtin-v{self.version}"
        self.fingerprint = self.data_label
        if not self.builtin:
            texts = "".join(r.sha256 for pair in self.data.values() for r in pair.values())
            self.fingerprint = hashlib.sha256(texts.encode()).hexdigest()
            self.data_label = f"scrolls-{self.fingerprint[:8]}"
        self._encoded = lru_cache(maxsize=1024)(self._encode)
        self._border = lru_cache(maxsize=None)(self._find_border)

    def _tokenizer(self) -> Tokenizer:
        if not self.builtin:
            assert self.context.start is not None  # the preset names one
            assert isinstance(self.context.start.vocabulary, Tokenizer)
            return self.context.start.vocabulary
        if self.context.tokenizer != "bytes":
            raise InputError(
                f"--tokenizer {self.context.tokenizer} has no effect on the built-in documents, "
                "whose words are tokens: give it with --data"
            )
        return miniature.tokenizer()

    def _format(self) -> StrictFormat | PaperFormat | QuestionLastFormat:
        if self.builtin:
            return QuestionLastFormat(self.tokenizer)
        if self.context.protocol == "strict":
            return StrictFormat(self.tokenizer)
        return PaperFormat(self.tokenizer)

    def _check_builtin(self) -> None:
        """Refuse what has no effect on the built-in documents."""
        if self.context.protocol != "strict":
            raise InputError("protocol paper is about the published documents: give them as --data")
        if not self.items:
            raise InputError("there is no end of built-in documents: give scrolls:items 1 or more")
        if self.length < miniature.LEAST_SIZE:
            raise InputError(
                f"--train.length {self.length} is too short for a built-in document with a "
                f"question: give {miniature.LEAST_SIZE} or more"
            )

    def _open(self, chosen: tuple[str, ...]) -> dict[str, dict[str, Records]]:
        """Return the splits of each subset that can be read."""
        opened: dict[str, dict[str, Records]] = {}
        unavailable = {}
        for name in chosen:
            folder = self.context.data or self._fetch(name)
            splits = ["train", "validation"]
            if self.builtin:
                splits = ["train", *(f"validation-{length}" for length in self.lengths)]
            try:
                opened[name] = {
                    split: open_split(folder, name, split, self.context.cache) for split in splits
                }
            except InputError as error:
                unavailable[name] = str(error)
        if not opened:
            raise DataError(f"no data for any subset: {next(iter(unavailable.values()))}")
        self.unavailable = unavailable
        return opened

    def _fetch(self, name: str) -> Path:
        """Return the folder with a subset where the user gave none."""
        if not self.builtin:
            return hub_file(HUB_REPOSITORY, f"{name}.zip", cache=self.context.cache / "hub").parent
        # Written in the official layout, so that evaluation does not differ from real data.
        version = hashlib.sha256(Path(miniature.__file__).read_bytes()).hexdigest()[:8]
        folder = self.context.cache / "builtin" / f"{version}-{self.length}-{self.items}"
        for split, (part, size) in self._builtin_splits().items():
            path = folder / name / f"{split}.jsonl"
            if not self._is_whole(path):
                style = SUBSETS[name].miniature
                write_split(path, miniature.rows(style, part, self.items, size))
                write_sealed(path.with_suffix(".json"), {}, of=f"{name}/{split}", files=[path])
        return folder

    @staticmethod
    def _is_whole(path: Path) -> bool:
        """Tell whether built-in documents are there as they were written."""
        of = f"{path.parent.name}/{path.stem}"
        return recall(lambda: read_sealed(path.with_suffix(".json"), of=of)) is not None

    def _builtin_splits(self) -> dict[str, tuple[str, int]]:
        """Return the files of built-in documents, each with its split and the documents' size."""
        files = {"train": ("train", self.length)}
        for length in self.lengths:
            files[f"validation-{length}"] = ("validation", length)
        return files

    def _limits(self, answer: int, summary: int) -> dict[str, int]:
        """Return the longest output of each subset, in tokens with EOS."""
        limits = {}
        for name, splits in self.data.items():
            limit = summary if SUBSETS[name].summary else answer
            if not limit:
                some = splits["train"][:LIMIT_RECORDS]
                outputs = [output for record in some for output in record.outputs]
                needed = max(len(self.format.output(output, self.length)) for output in outputs)
                limit = min(needed, self.length // 4)
            limits[name] = limit
        return limits

    @cached_property
    def max_eval_tokens(self) -> int:
        if not self.builtin:
            return self.train_length
        return self.lengths[-1] + max(self.limits.values())

    @cached_property
    def views(self) -> tuple[View, ...]:
        """A column for each subset; curves over the length of built-in documents."""
        if not self.builtin:
            return tuple(
                Column(name, SUBSETS[name].metric, self._reading(name)) for name in self.subsets
            )
        views: list[View] = [Column(ID, "score")]
        curves: list[View] = [Curve("all", "score", "all seven subsets")]
        for name, subset in SUBSETS.items():
            views.append(Column(f"{name}-{OOD}", subset.metric))
            curves.append(Curve(name, subset.metric))
        return (*views, *curves)

    def _reading(self, name: str) -> str:
        """Return the title of a subset, with how much of an input is read and what can be scored.

        Empty where inputs and references are used whole.
        """
        read, whole = self._median_tokens[name]
        ceiling = self._ceiling(name)
        parts = []
        if read < whole:
            parts.append(f"reads {read:,} of {whole:,} tokens")
        if ceiling < 99.95:
            parts.append(f"at most {ceiling:.1f}")
        return f"{name}: {', '.join(parts)}" if parts else ""

    @cached_property
    def _median_tokens(self) -> dict[str, tuple[int, int]]:
        """Tokens of an input that are read and all of its tokens, the median of each subset."""
        medians = {}
        for name in self.subsets:
            records = self._evaluated(name, "validation")
            whole = statistics.median(len(self.tokenizer.encode(r.input)) for r in records)
            read = min(whole, self.length - self.limits[name] - 2)
            medians[name] = (round(read), round(whole))
        return medians

    def _ceiling(self, name: str) -> float:
        """Return the score of the references themselves, cut as outputs are."""
        records = self._evaluated(name, "validation")
        cut = []
        for record in records:
            ids = self.format.output(record.outputs[0], self.limits[name])
            cut.append(self.tokenizer.decode(ids).strip())
        metric = SUBSETS[name].metric
        return score(metric, cut, [record.outputs for record in records])[metric]

    def _encode(self, name: str, index: int, reference: int) -> tuple[list[int], list[int]]:
        """Return prompt and output of a training example."""
        record = self.data[name]["train"][index]
        limit = self.limits[name]
        prompt = self.format.prompt(
            record.input, self.length - limit, SUBSETS[name].summary, training=True
        )
        output = record.outputs[reference % len(record.outputs)]
        return prompt, self.format.output(output, limit)

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        if subset is None:
            return self._builtin_batch(seed, step, step / self.train.steps)
        size, total = self.train.batch_size, self._border(subset)
        samples = []
        for position in range(step * size, (step + 1) * size):
            epoch, place = divmod(position, total)
            index = int(_order(total, seed, epoch)[place])
            prompt, output = self._encoded(subset, index, epoch + index)  # references take turns
            samples.append([Turn(prompt, output)])
        return self._collated(samples)

    def held_out_batch(self, subset: str | None, step: int) -> Batch:
        """Return examples of the last training documents, which `batch` leaves out."""
        if subset is None:
            return self._builtin_batch(HELD_OUT_SEED, step, 1.0)
        border = self._border(subset)
        size, total = self.train.batch_size, len(self.data[subset]["train"]) - border
        samples = []
        for position in range(step * size, (step + 1) * size):
            epoch, place = divmod(position, total)
            prompt, output = self._encoded(subset, border + place, epoch + border + place)
            samples.append([Turn(prompt, output)])
        return self._collated(samples)

    def _builtin_batch(self, seed: int, step: int, done: float) -> Batch:
        assert isinstance(self.format, QuestionLastFormat)
        tokens = self.train.batch_size * self.length
        return draw_batch(self.format, tokens, self.length, seed, step, done)

    def _find_border(self, subset: str) -> int:
        """Return the place of the first held-out training example; their number: there are none.

        Those of one document stand together in the files, and are held out together.
        """
        records = self.data[subset]["train"]
        if not self.context.hold_out:
            return len(records)
        border = min(int((1 - HELD_OUT) * len(records)), len(records) - 1)
        document = records[border].document
        while border and records[border - 1].document == document:
            border -= 1
        if not border:
            raise InputError(
                f"the training examples of {subset} are all of one document, so that none can be "
                "held back: leave out --tune or give more documents"
            )
        return border

    def _collated(self, samples: list[list[Turn]]) -> Batch:
        sequences = collate(samples)
        batch = sequences.batch()
        longer = torch.arange(batch.tokens.shape[1]) >= torch.from_numpy(sequences.lengths)[:, None]
        return Batch(batch.tokens.masked_fill(longer, self.tokenizer.pad), batch.targets)

    def evaluate(self, model: Decoder, subset: str, seed: int, journal: Journal) -> Evaluation:
        items: list[Items] = []
        questions = {split: self._evaluated(subset, split) for split in self._validation(subset)}
        total = sum(map(len, questions.values()))
        with progress(f"{subset} · generate", total, unit="item") as bar:
            for split, records in questions.items():
                size = max(1, self._tokens_per_forward // self._size_of(split))
                for first in range(0, len(records), size):
                    some = records[first : first + size]
                    if some[-1].id not in journal.items:
                        journal.add(self._answers(model, subset, some, seed + first))
                    bar.update(len(some))
        for split, records in questions.items():
            answers = [journal.items[record.id] for record in records]
            length = self._length_of(subset, split)
            items += accuracies(subset, answers, documents_of(records), length)
            items += self._items(subset, split, [answer["prediction"] for answer in answers])
        return Evaluation(_rows(items), items=items)

    def _validation(self, subset: str) -> list[str]:
        return [split for split in self.data[subset] if split != "train"]

    @property
    def _tokens_per_forward(self) -> int:
        return BUILTIN_TOKENS_PER_FORWARD if self.builtin else TOKENS_PER_FORWARD

    def _size_of(self, split: str) -> int:
        """Return the longest sequence of a split, in tokens."""
        return int(split.partition("-")[2] or self.length)

    def _length_of(self, subset: str, split: str) -> int:
        """Return the place of a split on the axis of lengths."""
        return self._size_of(split) if self.builtin else self._median_tokens[subset][0]

    def _items(self, subset: str, split: str, predictions: list[str]) -> list[Items]:
        """Return the official scores of answers to a split, of each example, by metric."""
        length = self._length_of(subset, split)
        return score_answers(
            subset,
            SUBSETS[subset].metric,
            predictions,
            self._evaluated(subset, split),
            length=length,
            groups=self._groups(subset, length),
            cache=self.context.cache,
        )

    def _groups(self, subset: str, length: int) -> tuple[Place, ...]:
        """Return the summary rows that the cell of a subset and length counts in."""
        if not self.builtin:
            return (Place("all", "score"),)
        here = Place("all", "score", length)
        if length == self.length:
            return (here, Place(ID, "score"))
        return (here, Place(OOD, "score"), Place(f"{subset}-{OOD}"))

    def _answers(
        self, model: Decoder, subset: str, records: list[Record], seed: int
    ) -> dict[str, Any]:
        """Return what the journal keeps of each record."""
        limit, summary = self.limits[subset], SUBSETS[subset].summary
        strict = self.context.protocol == "strict"
        sampling = None if strict else SUBSETS[subset].sampling
        if sampling:
            sampling = Sampling(sampling.top_k, sampling.top_p, seed)
        room = self.length - limit
        prompts = [self.format.prompt(r.input, room, summary, training=False) for r in records]
        generated = generate(
            model,
            prompts,
            max_new_tokens=limit,
            end=self.tokenizer.eos,
            sampling=sampling,
        )
        answers: dict[str, Any] = {}
        for record, prompt, ids in zip(records, prompts, generated, strict=True):
            answers[record.id] = {"prediction": self.tokenizer.decode(ids).strip()}
            options = options_of(record.input) if strict and not self.builtin else []
            if options:
                outputs = [self.format.output(option, limit) for option in options]
                chosen = likeliest(model, prompt, options, outputs)
                answers[record.id] |= {
                    key: options[choice] in record.outputs for key, choice in chosen.items()
                }
        return answers

    def _evaluated(self, subset: str, split: str) -> list[Record]:
        records = self.data[subset][split]
        total = len(records)
        wanted = min(self.items, total) if self.items else total
        return [records[i * total // wanted] for i in range(wanted)]

    def references(self) -> dict[str, list[Measurement]]:
        """Return the rows of a constant answer and of guessing, as those of a model."""
        constant: list[Measurement] = []
        guessing: list[Measurement] = []
        for subset in self.subsets:
            kind = SUBSETS[subset]
            train = self.data[subset]["train"][:REFERENCE_RECORDS]
            # Comparing long summaries takes seconds.
            tried = LONG_CANDIDATES if kind.summary and not self.builtin else CANDIDATES
            best = constant_answer(kind.metric, train, candidates=tried)
            for split in self._validation(subset):
                records = self._evaluated(subset, split)
                constant += _rows(self._items(subset, split, [best] * len(records)))
                options = [options_of(record.input) for record in records]
                drawn = []
                for seed in range(1 if tried == LONG_CANDIDATES else GUESSES):
                    answers = guesses(options, train, seed)
                    drawn.append(_rows(self._items(subset, split, answers)))
                guessing += average(drawn)
        return {
            "constant answer": [*constant, *self.summarize(constant)],
            "guessing": [*guessing, *self.summarize(guessing)],
        }

    def summarize(self, measured: list[Measurement]) -> list[Measurement]:
        """Return the SCROLLS score, partial where some of the seven are missing.

        Of built-in documents: at each length, at the trained one, and the mean of those beyond it,
        of each subset too.
        """
        main = [row for row in measured if row.metric == SUBSETS[row.subset].metric]
        if not main:
            return []
        whole: Status = "ranked" if len({row.subset for row in main}) == len(SUBSETS) else "partial"
        if not self.builtin:
            mean = mean_of("all", main, whole)
            return [replace(mean, metric="score", n=len(main))]
        rows = []
        for length in self.lengths:
            here = [row for row in main if row.length == length]
            rows.append(replace(_score_of("all", here, whole), length=length))
        trained = [row for row in main if row.length == self.length]
        beyond = [row for row in main if row.length != self.length]
        inside = _score_of(ID, trained, whole)
        assert self.gate is not None
        status: Status = whole if inside.value >= self.gate else "not_learned"
        rows += [inside, _score_of(OOD, beyond, status)]
        for subset in self.subsets:
            own = [row for row in beyond if row.subset == subset]
            if own:
                rows.append(mean_of(f"{subset}-{OOD}", own))
        return rows

    def provenance(self) -> dict[str, Any]:
        return {
            "label": self.data_label,
            "folder": str(self.context.data) if self.context.data else None,
            "files": {
                f"{name}/{split}": records.sha256
                for name, splits in self.data.items()
                for split, records in splits.items()
            },
            "start": self.context.start.provenance() if self.context.start else None,
        }


def _rows(items: list[Items]) -> list[Measurement]:
    return [each.row() for each in items]


def _score_of(name: str, rows: list[Measurement], status: Status) -> Measurement:
    """Return the mean of subsets and lengths as a SCROLLS score."""
    return replace(mean_of(name, rows, status), metric="score")


@lru_cache(maxsize=8)
def _order(total: int, seed: int, epoch: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
    return np.random.default_rng([seed, epoch]).permutation(total)
