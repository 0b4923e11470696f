"""Write the tables in docs/tasks.md of the models and the signal of each task.

    python docs/main_set.py

The numbers come from results/quick and results/scrolls. `tests/test_main_set.py` fails if page and
results disagree.
"""

from pathlib import Path

from pe_bench.reporting.families import in_main_set
from pe_bench.reporting.markdown import markdown_table, replace_block
from pe_bench.reporting.sensitivity import measure_signal
from pe_bench.reporting.tables import Table, read_tables
from pe_bench.system.files import write_atomic

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "tasks.md"
RESULTS = ("quick", "scrolls")
SETTINGS = "settings"
SETTINGS_HEADER = [
    *("task", "layers", "heads", "parameters", "training length", "steps", "rows per step"),
    *("tokens, millions", "learned from"),
]
BLOCK = "signal"
HEADER = [
    *("task", "encodings", "best baseline", "worst mean", "best mean", "sd between encodings"),
    *("sd between seeds", "ratio", "runs that learned", "training seconds", "main set"),
]


def main() -> None:
    """Write the tables."""
    tables = [table for name in RESULTS for table in read_tables(ROOT / "results" / name)]
    text = PAGE.read_text(encoding="utf-8")
    text = replace_block(text, SETTINGS, compose_settings(tables))
    write_atomic(PAGE, replace_block(text, BLOCK, compose(tables)))


def compose_settings(tables: list[Table]) -> str:
    """Return the table of models and training, in the order of the tasks' names."""
    rows = []
    for table in tables:
        record = table.about
        model, train = record.settings["model"], record.settings["train"]
        tokens = train["steps"] * train["batch_size"] * record.train_length
        learned = "best baseline" if record.gate is None else f"{record.gate:g} %"
        cells = [record.task, str(model["layers"]), str(model["heads"]), f"{table.parameters:,}"]
        cells += [str(record.train_length), f"{train['steps']:,}", str(train["batch_size"])]
        cells += [f"{tokens / 1e6:.1f}", learned]
        rows.append(cells)
    return markdown_table(SETTINGS_HEADER, sorted(rows), "l" + "r" * 8)


def compose(tables: list[Table]) -> str:
    """Return the table, the largest ratio first."""
    rows = []
    for table in tables:
        encodings = [name for name in table.ranking.names if ":" not in name]  # default options
        signal = measure_signal(table, encodings)
        floor = table.ranking.best_baseline
        cells = [table.task_name, str(len(encodings)), "" if floor is None else f"{floor:.1f}"]
        cells += [f"{signal.worst:.1f}", f"{signal.best:.1f}"]
        cells += [f"{signal.between:.1f}", f"{signal.within:.1f}", f"{signal.ratio:.1f}"]
        cells += [f"{100 * signal.learned:.0f} %", f"{signal.seconds:.0f}"]
        cells.append("yes" if in_main_set([table]) else "")
        rows.append((signal.ratio, cells))
    rows.sort(key=lambda row: -row[0])
    return markdown_table(HEADER, [cells for _, cells in rows], "l" + "r" * 9 + "l")


if __name__ == "__main__":
    main()
