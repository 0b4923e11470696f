"""The page on a published model agrees with the committed results."""

import re
from pathlib import Path
from types import ModuleType

import pytest
from scripts import load_script

from pe_bench.config import ModelConfig
from pe_bench.registry import plugins
from pe_bench.reporting.markdown import find_block, replace_block
from pe_bench.reporting.tables import Table

ROOT = Path(__file__).parents[1]
DECIMAL = r"\d+\.\d+|\d+ of \d+"


@pytest.fixture(scope="module")
def page() -> ModuleType:
    """Return the script that writes the tables of the page."""
    return load_script("docs/published_model.py")


@pytest.fixture(scope="module")
def tables(page: ModuleType) -> dict[str, str]:
    """Return the tables made from the committed results."""
    found: dict[str, str] = page.compose(page.read())
    return found


@pytest.mark.slow
def test_the_tables_are_those_of_the_results(page: ModuleType, tables: dict[str, str]) -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    for title, table in tables.items():
        assert find_block(text, title) == table, "run python docs/published_model.py"


def table_cells(table: str) -> list[list[str]]:
    """Return the cells of the rows of a table."""
    lines = table.splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.slow
def test_every_number_in_a_sentence_is_in_a_table(page: ModuleType, tables: dict[str, str]) -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    for title in tables:
        text = replace_block(text, title, "")
    findings = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    section = findings.partition("## A published model\n")[2].partition("\n## ")[0]
    claim = (ROOT / "docs" / "tape.md").read_text(encoding="utf-8")
    of_this_page = claim.partition("- On [SmolLM2-135M]")[2].partition("\n\n")[0]
    shown = set(re.findall(DECIMAL, "\n".join(tables.values())))
    floor = f"{page._find(page.read(), 'windows=24').ranking.best_baseline:.3f}"
    zero_shot = page._find(page.read(), "windows=24")
    whole, of_documents = page.key_shares(zero_shot)
    share, mean_share = f"{100 * whole:.1f}", f"{100 * of_documents.mean():.1f}"
    parts = [-part for part in page.key_contributions(zero_shot)]
    smallest, largest = f"{min(parts):.3f}", f"{max(parts):.3f}"
    said = " ".join(text.split())
    assert f"{share} % of the scored bytes ({mean_share} % in the mean over documents)" in said
    assert f"by only {smallest} to {largest} bits" in said
    further = page._find(page.read(), "windows=12")
    of_searches = describe_searches(page, further, said)
    for length in (page.TRAINED, page.LONGEST):
        one, other = page._losses(further, "tape [encoding+lora", length).mean(1)
        of_searches.add(f"{abs(one - other):.3f}")
    two = page._find(page.read(), "windows=2,")
    of_two = {
        f"{mean:.3f}"
        for column in ("1x-context", "2x-context")
        for mean in two.numbers(column, "bits_per_byte")["mean"]
    }
    for prose in (text, section, of_this_page):
        numbers = set(re.findall(DECIMAL, " ".join(prose.split())))
        assert numbers
        known = {"4.8", "0.002", share, mean_share, smallest, largest, floor, *of_searches, *of_two}
        assert numbers - shown <= known, "no table has these"


def describe_searches(page: ModuleType, table: Table, said: str) -> set[str]:
    """Check the sentences on equal learning rates, and return their numbers."""
    losses = {}
    for name in ("tape [encoding+lora", "rope [lora", "tape [encoding+emb", "rope [emb"):
        record = next(r for r in table.records if r.encoding.startswith(page.MODEL + name))
        assert record.tuning is not None
        losses[name] = {one["lr"]: one["loss"] for one in record.tuning["task"]["tried"]}
        losses[name]["chosen"] = losses[name][record.tuning["task"]["lr"]["all"]]
    of_norms, of_lora = (
        {
            rate: losses[other][rate] - loss
            for rate, loss in losses[one].items()
            if rate in losses[other]
        }
        for one, other in (
            ("tape [encoding+emb", "rope [emb"),
            ("tape [encoding+lora", "rope [lora"),
        )
    )
    chosen = of_norms.pop("chosen")
    of_lora.pop("chosen")
    rate = losses["rope [emb"]["chosen"] - losses["rope [emb"][0.00074]
    highest = of_lora.pop(0.01)
    assert (len(of_norms), len(of_lora)) == (5, 4)
    sentences = (
        f"Of the {chosen:.3f} nats between the held-out losses of the two choices, the rate "
        f"explains {rate:.3f}. At each of five equal rates, the held-out loss with TAPE is "
        f"{min(of_norms.values()):.3f} to {max(of_norms.values()):.3f} nats lower.",
        f"at four equal rates of up to 0.0055, the held-out loss with TAPE is "
        f"{min(of_lora.values()):.3f} to {max(of_lora.values()):.3f} nats lower, and at 0.01 it is "
        f"{-highest:.3f} nats higher.",
    )
    for sentence in sentences:
        assert sentence in said
    return set(re.findall(DECIMAL, " ".join(sentences))) | {"0.01"}


@pytest.mark.slow
def test_the_counts_of_documents_and_windows(page: ModuleType) -> None:
    text = " ".join(page.PAGE.read_text(encoding="utf-8").split())
    for part, said in (
        ("windows=24", "There are 44 windows from 19 documents"),
        ("windows=12", "32 windows from 15 documents are long enough for 20,480 tokens"),
    ):
        assert said in text
        record = page._find(page.read(), part).records[0]
        cells = [
            cell
            for cell in page.read_run_items(record)
            if cell.subset.endswith("-context")
            and (cell.length, cell.metric) == (page.LONG, "bits_per_byte")
        ]
        windows = sum(len(cell.values) for cell in cells)
        documents = sum(len(set(cell.clusters.tolist())) for cell in cells)
        assert f"{windows} windows from {documents} documents" in said


@pytest.mark.slow
def test_float32_and_bf16_agree(page: ModuleType) -> None:
    text = " ".join(page.PAGE.read_text(encoding="utf-8").split())
    tables = page.read()
    halves = {
        (record.encoding, cell.length): cell
        for record in page._find(tables, "windows=24").records
        for cell in page.read_run_items(record)
        if (cell.subset, cell.metric) == ("pg19-context", "bits_per_byte")
    }
    usual, broken = [0.0], [0.0]
    for record in page._find(tables, "windows=2,").records:
        for cell in page.read_run_items(record):
            half = halves.get((record.encoding, cell.length))
            if half is None or (cell.subset, cell.metric) != ("pg19-context", "bits_per_byte"):
                continue
            same = [half.weights.tolist().index(bytes) for bytes in cell.weights]
            differences = cell.values / cell.weights - half.values[same] / half.weights[same]
            is_broken = record.encoding == "smollm2 -> rope" and cell.length == page.LONG
            (broken if is_broken else usual).extend(abs(differences))
    limits = re.search(r"bf16 by less than ([\d.]+) bits; .*? by less than ([\d.]+)\.", text)
    assert limits
    assert 0 < max(usual) < float(limits[1]) and 0 < max(broken) < float(limits[2])


@pytest.mark.slow
def test_methods_on_two_windows(page: ModuleType) -> None:
    text = " ".join(page.PAGE.read_text(encoding="utf-8").split())
    table = page._find(page.read(), "windows=2,")
    loss = {}
    for column in ("1x-context", "2x-context"):
        for row in table.numbers(column, "bits_per_byte").itertuples():
            loss[row.encoding.removeprefix("smollm2 -> "), column] = row.mean
    (limit,) = re.findall(r"so they differ from truncation by less than (0\.\d+) bits", text)
    for name in ("streaming-llm", "lm-infinite"):
        assert abs(loss[name, "2x-context"] - loss["rope", "1x-context"]) < float(limit)
    encoding = plugins.load("encoding", "string-rope").make(ModelConfig(train_length=8192), 0)
    first = 8192 + encoding.offset - encoding.local + 1
    assert f"untrained distances from {first:,} tokens on" in text


@pytest.mark.slow
def test_the_verdicts_follow_from_the_intervals(tables: dict[str, str]) -> None:
    rows = {}
    for name, *cells in table_cells(tables["zero-shot"]):
        if cells[0] != "–":
            rows[name] = cells
    means, of_keys = ([float(cells[n].split()[0]) for cells in rows.values()] for n in (3, 6))
    significant, of_key_tokens = (
        {name for name, cells in rows.items() if float(cells[n].strip("<")) <= 0.05} for n in (4, 7)
    )
    assert rows.keys() - significant == {"Self-Extend", "LongRoPE-like", "YaRN"}
    assert min(float(rows[name][3].split()[0]) for name in significant) > 0
    assert of_key_tokens == rows.keys()
    worse = {name for name, cells in rows.items() if float(cells[6].split()[0]) > 0}
    assert worse == {"PI", "unmodified RoPE"}
    for name in ("Dynamic NTK", "NTK", "base 500,000"):
        assert rows[name][5] == "0 of 19"
    assert (
        min(means) == means[0] and min(of_keys) == of_keys[0] and next(iter(rows)) == "Self-Extend"
    )
    for trained, tokens, difference, *_ in table_cells(tables["with and without TAPE"]):
        _, low, high = map(float, re.findall(r"[+-]\d\.\d+", difference))
        is_better = trained == "embeddings and norms" and tokens != "8,192"
        assert high < 0 if is_better else low > 0
    untrained = [float(rows[name][2]) for name in rows if name not in ("PI", "unmodified RoPE")]
    for _, _, trained_length, long, *_ in table_cells(tables["trained further"]):
        assert float(long) > float(trained_length)
        assert float(long) > max(untrained)
