"""Which rows of two runs differ."""

from dataclasses import replace
from pathlib import Path

from made_runs import CURVE, SCORE, put

from pe_bench.results.run_comparison import RowDifference, differing_rows, row_key, rows_by_key
from pe_bench.results.store import read_record


def test_rows_differ_in_numbers_or_exist_once(tmp_path: Path) -> None:
    changed = [replace(SCORE, value=2.0), replace(CURVE[0], ci_low=0.5), CURVE[1]]
    folders = [
        put(tmp_path, "rope", rows, seed) for seed, rows in enumerate([[SCORE, *CURVE], changed])
    ]
    one, two = (rows_by_key(read_record(folder)) for folder in folders)
    keys = [("test", "bits_per_byte", f"{length}", "") for length in (8, 16, 32)]
    score = ("all", "bits_per_byte", "", "")
    assert list(one) == [score, *keys] and row_key(one[keys[0]]) == keys[0]
    found = differing_rows(one, two)
    assert [row.key for row in found] == [score, keys[0], keys[2]]
    assert found[2] == RowDifference(keys[2], one[keys[2]], None)
    assert [row.key for row in differing_rows(two, one, ["value"])] == [score, keys[2]]
    assert differing_rows(one, one) == []
