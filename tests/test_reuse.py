"""Measuring goes on from what is exported: nothing is trained or searched again."""

import json
import shutil
from pathlib import Path

import pytest
from test_tuning import Toy, kept, records
from test_tuning import toy as toy  # a fixture

import pe_bench
from pe_bench.cli import main

TUNED = ("--tune", "--tune.seeds", "7")


def forget() -> None:
    """Remove results, and models that were trained."""
    shutil.rmtree("results")
    shutil.rmtree("cache")


def test_a_grid_goes_on_from_an_export(toy: Toy, tmp_path: Path) -> None:
    toy(*TUNED, "--seeds", "0", "1", encodings=("nope", "rope"))
    before = kept(tmp_path, "rope")
    rows = pe_bench.read_results("results")
    curves = pe_bench.read_curves("results")
    assert main(["export", "sent"]) == 0
    forget()
    assert main(["merge", "sent"]) == 0
    assert kept(tmp_path, "rope") == before
    code, trained = toy(*TUNED, "--seeds", "0", "1", "2", encodings=("nope", "rope"))
    assert code == 0 and [each.split()[1] for each in trained] == ["2", "2"]  # no 7: no search
    assert len(pe_bench.read_results("results")) == len(rows) * 3 // 2
    assert len(pe_bench.read_curves("results")) == len(curves) * 3 // 2
