"""The `datasets` library has no visible side effects."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import datasets
import pytest

from pe_bench.errors import InputError, SavingError
from pe_bench.text.arrow import keep_rows, quiet_library

ROOT = Path(__file__).parents[1]
ROWS = [{"id": str(i), "text": "word " * i} for i in range(100)]

SCRIPT = """
import socket, sys
from pathlib import Path

def refuse(*address):
    raise AssertionError(f"asked the network for {address}")

socket.socket.connect = socket.getaddrinfo = refuse
from pe_bench.tasks.perplexity.tokenized_corpus import corpus_tokens
from pe_bench.tasks.scrolls.documents import open_split
from pe_bench.text.folder_corpus import folder_corpus
from pe_bench.text.tokenizer import ByteTokenizer

folder, cache = map(Path, sys.argv[1:])
assert corpus_tokens(folder_corpus(folder / "text"), ByteTokenizer(), cache).test().bounded
assert len(open_split(folder, "qa", "train", cache)) == 1
"""


@pytest.mark.slow
def test_reading_asks_no_network_says_nothing_and_writes_to_the_cache_alone(tmp_path: Path) -> None:
    line = '{"id": "x", "input": "i", "output": "o", "text": "%s"}\n' % ("word " * 300)
    for name in ("text/train/a.jsonl", "text/test/b.txt", "qa/train.jsonl"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_text(line)
    home = tmp_path / "home"
    home.mkdir()
    env = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "data"), str(tmp_path / "cache")],
        env={**env, "HOME": str(home), "TMPDIR": str(home), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    written = {path.relative_to(home).parts[:2] for path in home.rglob("*") if path.is_file()}
    assert written <= {(".cache", "matplotlib"), (".config", "matplotlib")}  # fonts, of a plot
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["datasets", "tokens"]


def test_rows_are_written_once_and_come_back(tmp_path: Path) -> None:
    calls = []

    def rows() -> Iterator[dict[str, str]]:
        calls.append(1)
        yield from ROWS

    for _ in range(2):
        kept = keep_rows("some-rows", ["id", "text"], rows, tmp_path, empty="")
        assert kept[:] == {"id": [r["id"] for r in ROWS], "text": [r["text"] for r in ROWS]}
    assert len(calls) == 1


def test_an_error_among_the_rows_is_raised_as_it_is(tmp_path: Path) -> None:
    def rows() -> Iterator[dict[str, str]]:
        yield ROWS[0]
        raise InputError("line 2 is wrong")

    with pytest.raises(InputError, match=r"^line 2 is wrong$"):
        keep_rows("wrong", ["id", "text"], rows, tmp_path, empty="")
    with pytest.raises(InputError, match=r"^nothing there$"):
        keep_rows("empty", ["text"], lambda: iter([]), tmp_path, empty="nothing there")
    with pytest.raises(SavingError, match="cannot save"):
        (tmp_path / "file").touch()
        keep_rows("some", ["id", "text"], lambda: iter(ROWS), tmp_path / "file", empty="")
    assert not list(tmp_path.rglob("*.arrow"))


def test_a_full_disk_is_named_whatever_the_library_raises_then(tmp_path: Path) -> None:
    def rows() -> Iterator[dict[str, str]]:
        yield {"text": "a"}
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        finally:
            raise ValueError("I/O operation on closed file.")

    with pytest.raises(SavingError, match="No space left on device"):
        keep_rows("x", ["text"], rows, tmp_path, empty="")


@pytest.mark.parametrize(
    ("terminal", "size", "bars"), [(1, 1 << 30, 1), (1, 9, 0), (0, 1 << 30, 0)]
)
def test_settings_of_the_library_are_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool, size: int, bars: bool
) -> None:
    def settings() -> tuple[object, ...]:
        hidden = datasets.are_progress_bars_disabled()
        return datasets.logging.get_verbosity(), hidden, datasets.config.HF_DATASETS_CACHE

    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    before = settings()
    with pytest.raises(KeyboardInterrupt), quiet_library(tmp_path, size):
        expected = datasets.logging.CRITICAL, not bars, tmp_path / "datasets"
        assert settings() == expected != before
        raise KeyboardInterrupt
    assert settings() == before
