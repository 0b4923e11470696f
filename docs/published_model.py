"""Write the tables in docs/published-model.md.

    python docs/published_model.py

The numbers come from results/pretrained. `tests/test_published_model.py` fails if page and results
disagree.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy import stats

from pe_bench.reporting.markdown import ABSENT, Markdown, markdown_table, replace_block
from pe_bench.reporting.paired import show_p
from pe_bench.reporting.tables import Table, read_tables
from pe_bench.results.items import Items
from pe_bench.results.run_data import read_run_items
from pe_bench.stats.significance import holm
from pe_bench.system.files import write_atomic

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "published-model.md"
RESULTS = ROOT / "results" / "pretrained"

MODEL = "smollm2 -> "
TRAINED, LONG, LONGEST = 8192, 16384, 20480  # tokens
CORPORA = ("pg19", "proofpile", "code")

NAMES = {
    "rope": "unmodified RoPE",
    "rope:scaling=longrope": "LongRoPE-like",
    "rope:scaling=yarn": "YaRN",
    "rope:scaling=dynamic-ntk": "Dynamic NTK",
    "rope:scaling=ntk": "NTK",
    "rope:scaling=pi": "PI",
    "rope:base": "base 500,000",
    "self-extend": "Self-Extend",
    "dual-chunk": "Dual chunk",
    "rerope": "ReRoPE",
    "streaming-llm": "StreamingLLM",
    "lm-infinite": "LM-Infinite",
    "string-rope": "STRING",
}
ADAPTED = {
    "rope [embeddings+norms": "`rope`: embeddings and norms",
    "tape [encoding+embeddings+norms": "`tape`: encoding, embeddings and norms",
    "rope [lora": "`rope`: LoRA",
    "tape [encoding+lora": "`tape`: encoding and LoRA",
}

Documents = npt.NDArray[np.float64]  # mean of each document, (documents,)


def main() -> None:
    """Write the tables."""
    text = PAGE.read_text(encoding="utf-8")
    for title, table in compose(read()).items():
        text = replace_block(text, title, table)
    write_atomic(PAGE, text)


def read() -> list[Table]:
    """Return the tables of the results."""
    return read_tables(RESULTS)


def compose(tables: Sequence[Table]) -> dict[str, str]:
    """Return the tables of the page by the names of their comments."""
    zero = _find(tables, "windows=24")
    keys = [table for table in tables if table.about.task.startswith("passkey:")]
    return {
        "zero-shot": _zero_shot(zero, keys),
        "two windows": _two_windows(_find(tables, "windows=2,"), zero, keys),
        "trained further": _trained_further(_find(tables, "windows=12")),
        "with and without TAPE": _with_and_without(_find(tables, "windows=12")),
    }


def _find(tables: Sequence[Table], part: str) -> Table:
    """Return the table of the task whose spec has this part."""
    (found,) = (table for table in tables if part in table.about.task)
    return found


def _zero_shot(losses: Table, keys: Sequence[Table]) -> str:
    """Return the losses without further training, relative to a context cut to 8,192 tokens."""
    header = [
        *("encoding", "8,192 tokens", "cost", "16,384 tokens", "vs. truncation", "p (Holm)"),
        *("lower in", "vs. truncation, key tokens", "p (Holm)", "lower in", "passkeys"),
    ]
    cut = _documents(losses, "rope", "context", TRAINED)
    cut_keys = _documents(losses, "rope", "key-tokens", TRAINED)
    names = _names(losses)
    of_all = [_documents(losses, name, "context", LONG) - cut for name in names]
    of_keys = [_documents(losses, name, "key-tokens", LONG) - cut_keys for name in names]
    cells, key_cells = _differences(of_all), _differences(of_keys)
    rows = []
    for index, name in enumerate(names):
        short = _documents(losses, name, "context", TRAINED)
        long = (of_all[index] + cut).mean()
        row = [_shown(name, NAMES), f"{short.mean():.3f}", f"{(short - cut).mean():+.3f}"]
        rows.append([*row, f"{long:.3f}", *cells[index], *key_cells[index], _passkeys(keys, name)])
    return markdown_table(header, rows, "l" + "r" * 10)


def _two_windows(losses: Table, others: Table, keys: Sequence[Table]) -> str:
    """Return the losses of the encodings that were measured on two windows only."""
    header = ["encoding", "8,192 tokens", "16,384 tokens", "passkeys"]
    loss = {}
    for column in ("1x-context", "2x-context"):
        numbers = losses.numbers(column, "bits_per_byte")
        for label, mean in zip(numbers["encoding"], numbers["mean"], strict=True):
            loss[label.removeprefix(MODEL), column] = f"{mean:.3f}"
    rows = []
    for name in _names(losses):
        if f"{MODEL}{name}" not in others.encodings:
            short, long = (loss[name, column] for column in ("1x-context", "2x-context"))
            rows.append([_shown(name, NAMES), short, long, _passkeys(keys, name)])
    truncated = loss["rope", "1x-context"]
    rows.append([Markdown("*truncation*"), truncated, truncated, ABSENT])
    return markdown_table(header, rows, "lrrr")


def _trained_further(table: Table) -> str:
    """Return the losses after further training, as means over the seeds."""
    lengths = (2048, TRAINED, LONG, LONGEST)
    rows = []
    for label in table.ranking.order:
        name = label.removeprefix(MODEL)
        cells = [f"{_losses(table, name, length).mean():.3f}" for length in lengths]
        record = next(record for record in table.records if record.encoding == label)
        assert record.tuning is not None
        rate = f"{record.tuning['task']['lr']['all']:.2g}"
        rows.append([_shown(name, ADAPTED), *cells, rate, str(table.seeds(label))])
    header = ["trained weights", *(f"{n:,} tokens" for n in lengths), "learning rate", "seeds"]
    return markdown_table(header, rows, "l" + "r" * 6)


def _with_and_without(table: Table) -> str:
    """Return the differences between TAPE's row and the same weights trained without TAPE."""
    pairs = {
        "embeddings and norms": ("tape [encoding+embeddings+norms", "rope [embeddings+norms"),
        "LoRA": ("tape [encoding+lora", "rope [lora"),
    }
    rows = []
    for trained, (first, second) in pairs.items():
        for length in (TRAINED, LONG, LONGEST):
            of_first, of_second = (_by_seed(table, name, length) for name in (first, second))
            seeds = sorted(of_first.keys() & of_second.keys())
            difference = np.mean([of_first[seed] - of_second[seed] for seed in seeds], axis=0)
            ((shown, _, better),) = _differences([difference])
            rows.append([trained, f"{length:,}", shown, better, ", ".join(map(str, seeds))])
    header = ["other trained weights", "tokens", "TAPE minus without TAPE", "lower in", "seeds"]
    return markdown_table(header, rows, "lrrrr")


def key_shares(table: Table) -> tuple[float, Documents]:
    """Return the share of key tokens in the scored bytes, and that of each document."""
    items = read_run_items(table.records[0])
    keys, scored = (_bytes(items, subset) for subset in ("key-tokens", "context"))
    return float(keys.sum() / scored.sum()), keys / scored


def key_contributions(table: Table) -> list[float]:
    """Return the part of each method's mean difference to truncation that comes from key tokens.

    It is the mean over documents of the difference of their key tokens times their share. Methods
    whose key tokens have a higher loss (PI and the unmodified model) are left out.
    """
    _, shares = key_shares(table)
    cut = _documents(table, "rope", "key-tokens", TRAINED)
    found = []
    for label in table.ranking.order:
        long = _documents(table, label.removeprefix(MODEL), "key-tokens", LONG)
        found.append(float(((long - cut) * shares).mean()))
    return [part for part in found if part < 0]


def _bytes(items: Sequence[Items], subset: str) -> Documents:
    """Return the number of bytes of each document under the longest context."""
    found = []
    for point, document in _items_by_document(items, subset, LONG):
        assert point.weights is not None
        found.append(point.weights[document].sum())
    return np.array(found)


def _names(table: Table) -> list[str]:
    """Return the encodings of a table, the best first."""
    return [label.removeprefix(MODEL) for label in table.ranking.order]


def _shown(name: str, names: Mapping[str, str]) -> str:
    """Return the name of an encoding on the page."""
    return Markdown(names[max((key for key in names if name.startswith(key)), key=len)])


def _losses(table: Table, name: str, length: int) -> Documents:
    """Return the losses of each seed and document, (seeds, documents)."""
    return np.stack([*_by_seed(table, name, length).values()])


def _by_seed(table: Table, name: str, length: int) -> dict[int, Documents]:
    """Return the losses of the documents under a context by seed."""
    found = {}
    for record in table.records:
        if record.encoding.startswith(f"{MODEL}{name}"):
            found[record.seed] = _of_documents(read_run_items(record), "context", length)
    return found


def _documents(table: Table, name: str, subset: str, length: int) -> Documents:
    """Return the losses of the documents, for an encoding with one seed."""
    (record,) = (record for record in table.records if record.encoding == f"{MODEL}{name}")
    return _of_documents(read_run_items(record), subset, length)


def _of_documents(items: Sequence[Items], subset: str, length: int) -> Documents:
    """Return the bits per byte of each document of all corpora."""
    means = []
    for point, document in _items_by_document(items, subset, length):
        assert point.weights is not None
        means.append(point.values[document].sum() / point.weights[document].sum())
    return np.array(means)


def _items_by_document(
    items: Sequence[Items], subset: str, length: int
) -> Iterator[tuple[Items, npt.NDArray[np.bool_]]]:
    """Yield the items of each corpus, with a mask for each of its documents."""
    for corpus in CORPORA:
        (point,) = (
            point
            for point in items
            if (point.subset, point.length) == (f"{corpus}-{subset}", length)
            and point.metric == "bits_per_byte"
        )
        assert point.clusters is not None
        for document in np.unique(point.clusters):
            yield point, point.clusters == document


def _passkeys(tables: Sequence[Table], name: str) -> str:
    """Return how many of the longest prompts were answered correctly."""
    for table in tables:
        numbers = table.numbers("passkey", "exact_match")
        found = numbers[(numbers["encoding"] == f"{MODEL}{name}") & (numbers["length"] == LONG)]
        if len(found):
            right = 0
            for share, count in zip(found["mean"], found["n"], strict=True):
                right += round(share / 100 * count)
            return f"{right} of {int(found['n'].sum())}"
    return ABSENT


def _differences(found: Sequence[Documents]) -> list[list[str]]:
    """Return mean differences with 95 % intervals over documents, p-values, and counts below 0.

    The p-values of the paired t-tests are corrected for the number of differences.
    """
    p_values = holm([float(stats.ttest_1samp(values, 0).pvalue) for values in found])
    rows = []
    for values, p_value in zip(found, p_values, strict=True):
        low, high = stats.t.interval(0.95, len(values) - 1, values.mean(), stats.sem(values))
        interval = f"{values.mean():+.3f} ({low:+.3f} to {high:+.3f})"
        below = f"{int((values < 0).sum())} of {len(values)}"
        rows.append([interval, Markdown(show_p(p_value)), below])
    return rows


if __name__ == "__main__":
    main()
