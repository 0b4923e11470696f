"""The contents of the cache folder, and `pe-bench cache`."""

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pe_bench.cli import main
from pe_bench.errors import InputError
from pe_bench.runs.resolve import others_start_from
from pe_bench.system import cache_entries, locks
from pe_bench.system.cache_entries import (
    ALL_KINDS,
    drop_weights,
    find_entries,
    limit_weights,
    used_since,
    using,
)
from pe_bench.system.locks import hold
from pe_bench.text.tokenizer import ByteTokenizer

TEXT = "text-" + "0" * 32
FILES = {
    "weights": ["checkpoints/0a1b/final.safetensors"],
    "texts": [f"datasets/{TEXT}.json", f"datasets/generator/x-fingerprint={TEXT}/0.0.0/a.arrow"],
    "tokens": ["tokens/abc-def/ids.arrow", "tokens/abc-def/abc-def.json"],
    "vocabularies": ["tokenizers/bpe300-0.json", "tokenizers/bpe300-0.seal"],
    "documents": ["builtin/3-128-9/qasper/train.jsonl"],
    "downloads": ["allenai--c4/main/en/c4.json.gz", "allenai--c4/main/en/c4.json.gz.seal"],
    "unfinished": ["checkpoints/2c3d/resume.safetensors"],
}
DAY = 86400


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache with one entry of each kind, last used ten days ago."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("PE_BENCH_CACHE", str(folder))
    for names in FILES.values():
        for name in names:
            write(folder / name, age=10)
    return folder


def write(path: Path, *, age: float = 0, size: int = 1000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    used = time.time() - age * DAY
    os.utime(path, (used, used))
    return path


def there(cache: Path) -> list[str]:
    """Return the kinds whose files all exist, after checking that no kind is incomplete."""
    found = []
    for kind, names in FILES.items():
        exist = {(cache / name).exists() for name in names}
        assert len(exist) == 1
        found += [kind] if exist == {True} else []
    return found


def test_every_file_belongs_to_an_entry(cache: Path) -> None:
    entries = find_entries(cache)
    assert [entry.kind for entry in entries] == list(ALL_KINDS) == list(FILES)
    assert [entry.size for entry in entries] == [1000 * len(names) for names in FILES.values()]
    assert {entry.kind: entry.owner for entry in entries}["downloads"] == "allenai/c4"
    (cache / "checkpoints/0a1b/of").write_text("rope · mqar · seed 0")
    assert find_entries(cache, {"weights"})[0].owner == "rope · mqar · seed 0"


def test_the_cache_is_shown(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache"]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"{cache}: 7 entries, 11 kB; weights of finished runs up to 20 GB"
    sizes = [f"1 entry, {len(names)} kB" for names in FILES.values()]
    used = "last used 10 days ago"
    assert lines == [f"{k:13}{size:>22}  {used}" for k, size in zip(FILES, sizes, strict=True)]
    assert main(["cache", "-v", "--only", "downloads"]) == 0
    assert capsys.readouterr().out.endswith("allenai/c4\n")
    assert main(["cache", "--older-than", "11"]) == 0
    assert "0 entries" in capsys.readouterr().out
    assert there(cache) == list(ALL_KINDS)


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ([], ["unfinished"]),
        (["--dry-run"], list(ALL_KINDS)),
        (["--older-than", "11"], list(ALL_KINDS)),
        (["--older-than", "9", "--only", "weights", "tokens"], [*ALL_KINDS[1:2], *ALL_KINDS[3:]]),
        (["--only", "unfinished"], list(ALL_KINDS[:-1])),
    ],
)
def test_cleaning(cache: Path, options: list[str], left: list[str]) -> None:
    assert main(["cache", "clean", *options]) == 0
    assert there(cache) == left


def test_what_a_running_command_uses_stays(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A running command keeps entries that it has locked, or used since its start."""
    with using(cache), hold(cache / "tokens/abc-def/abc-def.lock"):
        used = time.time() + 5  # the times of files are coarser than clocks
        cache_entries.mark_used(cache / "allenai--c4/main/en/c4.json.gz.seal")
        os.utime(cache / "allenai--c4/main/en/c4.json.gz.seal", (used, used - 20 * DAY))
        assert main(["cache", "clean"]) == 0
        assert "left 2 entries, 4 kB, which running commands use" in capsys.readouterr().out
    assert there(cache) == ["tokens", "downloads", "unfinished"]
    assert main(["cache", "clean"]) == 0
    assert there(cache) == ["unfinished"]


def test_a_command_that_was_killed_is_not_running(cache: Path) -> None:
    killed = write(cache / "running" / "node42-1234.lock")
    assert used_since(cache) == float("inf") and not killed.exists()
    with using(cache), using(cache):
        assert used_since(cache) <= time.time()
    assert not (cache / "running").exists()


def test_a_command_leaves_no_folder_behind(tmp_path: Path) -> None:
    with using(tmp_path / "new" / "cache"):
        assert used_since(tmp_path / "new" / "cache") < float("inf")
    assert not (tmp_path / "new" / "cache").exists()


def test_weights_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for age in range(1, 6):
        write(tmp_path / f"checkpoints/{age}/final.safetensors", age=age)
    write(tmp_path / "checkpoints/9/resume.safetensors", age=9)
    limit_weights(tmp_path)
    assert len(list(tmp_path.rglob("*.safetensors"))) == 6  # far below the default
    monkeypatch.setenv("PE_BENCH_CACHE_GB", "2.5e-6")
    (tmp_path / "checkpoints/5/lock").touch()
    with hold(tmp_path / "checkpoints/5/lock"):
        limit_weights(tmp_path)
    left = {path.parent.name for path in tmp_path.rglob("*.safetensors")}
    assert left == {"1", "5", "9"}  # the most recently used, the one in use, the unfinished one


@pytest.mark.parametrize("given", ["much", "-1", "nan"])
def test_a_limit_that_is_no_number(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PE_BENCH_CACHE_GB", given)
    with pytest.raises(InputError, match=f"PE_BENCH_CACHE_GB is '{given}', but must be a number"):
        using(tmp_path).__enter__()


def test_weights_that_others_start_from_or_use_stay(tmp_path: Path) -> None:
    for name in ("own", "start", "held"):
        write(tmp_path / name / "final.safetensors")
    (tmp_path / "start" / "start").touch()
    with hold(tmp_path / "held" / "lock"):
        for name in ("own", "start", "held", "none"):
            drop_weights(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["held", "start"]


def test_weights_stay_where_locks_do_not_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether another process uses them is unknown there."""

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no locks on this file system")

    weights = write(tmp_path / "checkpoints/1/final.safetensors")
    weights.with_name("lock").touch()
    monkeypatch.setenv("PE_BENCH_CACHE_GB", "0")
    with monkeypatch.context() as patch:
        patch.setattr(locks, "hold", fail)
        limit_weights(tmp_path)
    assert weights.exists()
    limit_weights(tmp_path)
    assert not weights.exists()


@pytest.mark.parametrize(
    ("label", "preset", "starts"),
    [
        ("perplexity:windows=3", "small", True),
        ("perplexity", "quick", False),
        ("scrolls", "small", False),
        ("mine.py", "small", False),
    ],
)
def test_tasks_that_others_start_from(label: str, preset: str, starts: bool) -> None:
    task = SimpleNamespace(
        context=SimpleNamespace(preset=preset), vocabulary=ByteTokenizer(), trains_each_subset=False
    )
    resolved: Any = SimpleNamespace(label=label, task=task)
    assert others_start_from(resolved) is starts


@pytest.mark.slow
def test_a_finished_run_leaves_no_weights_and_a_start_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PE_BENCH_CACHE", "cache")
    shape = ["--model.layers", "1", "--model.width", "32", "--train.steps", "3"]
    run = ["run", "--task", "flipflop:samples=5", *shape, "--no-report", "--encoding"]
    assert main([*run, "rope"]) == 0
    assert not list(Path("cache/checkpoints").iterdir())
    assert main([*run, "nope", "--from", "rope", "--adapt.steps", "2"]) == 0
    (entry,) = find_entries(Path("cache"))
    assert (entry.kind, entry.owner) == ("weights", "rope · flipflop:samples=5 · seed 0")
    assert main([*run, "rope", "--results", "other"]) == 0
    assert find_entries(Path("cache"))[0].paths == entry.paths
