import gzip
import hashlib
import io
import json
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from scripts import load_script

from pe_bench.errors import InputError
from pe_bench.text.builtin_corpora import (
    PYTHON_FINGERPRINT,
    PYTHON_FOLDER,
    STDLIB_TEST,
    STDLIB_TRAIN,
    STDLIB_VALID,
    python_corpus,
    stdlib_corpus,
)
from pe_bench.text.corpus import Corpus, Piece, Split
from pe_bench.text.folder_corpus import folder_corpus

SPLITS: tuple[Split, ...] = ("train", "valid", "test")
PAGE = "Seven words and a line of text.\n" * 64


def write(root: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def names(corpus: Corpus) -> dict[Split, list[str]]:
    (train,) = corpus.train
    parts: dict[Split, Piece] = {"train": train, "valid": corpus.valid, "test": corpus.test}
    return {split: [file.name for file in piece.files] for split, piece in parts.items()}


def texts(piece: Piece, cache: Path) -> list[str]:
    return list(piece.documents(cache)["text"])


def test_stdlib_groups_are_frozen() -> None:
    groups = STDLIB_TRAIN | STDLIB_VALID | STDLIB_TEST
    assert (len(STDLIB_TRAIN), len(STDLIB_VALID), len(STDLIB_TEST)) == (140, 8, 14)
    assert len(groups) == 162
    digest = hashlib.sha256(" ".join(sorted(groups)).encode()).hexdigest()
    assert digest == "de8fb7e8bdba8588d362c3fcaf6af7e5be354fecbefdcc389b18f9717e2117f3"


def test_stdlib_has_the_expected_size_on_any_python() -> None:
    corpus = stdlib_corpus()
    pieces = corpus.train[0], corpus.valid, corpus.test
    sizes = [sum(file.size for file in piece.files) / 1e6 for piece in pieces]
    assert sizes == pytest.approx([5.18, 0.48, 1.40], rel=0.15)
    inside = [set(Path(file.name).parts) for file in corpus.test.files]
    assert not any({"test", "tests", "site-packages"} & parts for parts in inside)


@pytest.mark.slow
@pytest.mark.skipif(
    sys.version_info[:3] != (3, 11, 7) or "pyenv" not in sysconfig.get_paths()["stdlib"],
    reason="the numbers are those of CPython 3.11.7 as built from source",
)
def test_stdlib_of_one_python(cache_folder: Path) -> None:
    corpus = stdlib_corpus()
    train, test = texts(corpus.train[0], cache_folder), texts(corpus.test, cache_folder)
    assert (len(train), len(corpus.valid.files), len(test)) == (285, 10, 49)
    assert len("".join(train).encode()) == 5_178_194
    assert len("".join(test).encode()) == 1_395_355
    assert corpus.fingerprint == "ed8b0ade10d1a39935094c9ba1278161d9cc4503a1f81f3ab5dd7e136b45162c"


def test_stdlib_leaves_out_tests_and_what_is_not_utf8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = {f"{group}.py": group for group in STDLIB_TRAIN | STDLIB_VALID | STDLIB_TEST}
    del modules["asyncio.py"], modules["ast.py"]
    write(tmp_path, modules)
    package = {"asyncio/__init__.py": "", "asyncio/sub/locks.py": "x", "asyncio/data.txt": "x"}
    skipped = {"asyncio/test/a.py": "x", "asyncio/__pycache__/b.py": "x", "turtle.py": "x"}
    write(tmp_path, {**package, **skipped, "ast.py": b"\xff\xfe", "site-packages/ast.py": "x"})
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    found = names(stdlib_corpus())
    assert found["test"][:3] == ["argparse.py", "asyncio/__init__.py", "asyncio/sub/locks.py"]
    assert len(found["test"]) == len(STDLIB_TEST) + 1
    assert set(found["train"]) == {f"{group}.py" for group in STDLIB_TRAIN - {"ast"}}


def test_stdlib_without_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"abc.py": "x", "ast.py": "x"})
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(InputError, match="only 2 of the 162"):
        stdlib_corpus()


@pytest.mark.parametrize("valid", ["valid", "validation", None])
def test_folder_with_splits(tmp_path: Path, valid: str | None) -> None:
    files = {
        "train/c": PAGE,
        "train/b/one.txt": PAGE,
        "train/a.lean": PAGE,
        "test/é.py": "é" + PAGE,
    }
    left_out: dict[str, str | bytes] = {
        "README.md": PAGE,
        "train/.git/config": PAGE,
        "train/.hidden": PAGE,
        "train/empty.txt": "",
        "train/image.png": b"\x89PNG\xff",
    }
    held_out = {f"{valid}/v.tex": PAGE} if valid else {}
    corpus = folder_corpus(write(tmp_path, {**files, **left_out, **held_out}))
    assert names(corpus) == {
        "train": ["train/a.lean", "train/b/one.txt", "train/c"],
        "valid": list(held_out),
        "test": ["test/é.py"],
    }
    assert corpus.name == tmp_path.name
    assert texts(corpus.test, tmp_path / "cache") == ["é" + PAGE]


def test_documents_are_read_as_they_are(tmp_path: Path) -> None:
    """This includes line ends, an empty file, and a file name with pattern characters."""
    odd = {"train/a[0-9]*.jsonl": json.dumps({"text": "1\r\n2\u2028"}), "train/b.txt": "1\r\n2\r"}
    corpus = folder_corpus(write(tmp_path / "odd", {**odd, "train/c": PAGE, "test/d": PAGE}))
    assert texts(corpus.train[0], tmp_path / "cache") == ["1\r\n2\u2028", "1\r\n2\r", PAGE]


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".json.gz"])
def test_files_of_many_documents(tmp_path: Path, suffix: str) -> None:
    def pack(*texts: str) -> bytes:
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
        return gzip.compress(lines, mtime=0) if suffix.endswith(".gz") else lines

    random = "".join(map(chr, np.random.default_rng(0).integers(32, 999, 2000)))  # to stay large
    one, two = f"{random}1", f"{random}2"
    train, test = f"train{suffix}", f"test{suffix}"
    flat = folder_corpus(write(tmp_path / "flat", {train: pack(one, two), test: pack(one)}))
    cache = tmp_path / "cache"
    assert (texts(flat.train[0], cache), texts(flat.test, cache)) == ([one, two], [one])
    files: dict[str, str | bytes]
    files = {f"train/a{suffix}": pack(one, two), "train/b.txt": PAGE, f"test/{test}": pack(two)}
    deep = folder_corpus(write(tmp_path / "deep", files))
    assert texts(deep.train[0], cache) == [one, two, PAGE]
    line = f"{test}\0{hashlib.sha256(pack(one)).hexdigest()}\n".encode()
    first = f"{train}\0{hashlib.sha256(pack(one, two)).hexdigest()}\n".encode()
    assert flat.fingerprint == hashlib.sha256(first + line).hexdigest()


def test_files_that_are_not_text_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {f"train/{i}.jsonl.zst": b"\x28\xb5\x2f\xfd" for i in range(7)}
    files |= {"test/b.txt": PAGE.encode("utf-16"), "train/.hidden": b"\xff"}
    files |= {"test/c.txt": "ASCII only".encode("utf-16-le")}  # which is valid UTF-8
    corpus = folder_corpus(write(tmp_path, {"train/a": PAGE, "test/a": f"another {PAGE}", **files}))
    assert names(corpus)["train"] == ["train/a"]
    first, second = capsys.readouterr().err.splitlines()
    some = ", ".join(f"train/{i}.jsonl.zst" for i in range(5))
    assert (
        first
        == f"pe-bench: {tmp_path}: files that are not UTF-8 text are left out: {some} and 2 others"
    )
    assert second.endswith("left out: test/b.txt, test/c.txt")


def test_links_that_are_not_followed_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus_folder = tmp_path / "corpus"
    write(tmp_path / "other", {"c": PAGE})
    write(corpus_folder, {"train/a": PAGE, "test/a": f"another {PAGE}"})
    (corpus_folder / "train/more").symlink_to(tmp_path / "other")
    (corpus_folder / "train/lost").symlink_to(tmp_path / "nowhere")
    (corpus_folder / "train/.git").symlink_to(tmp_path / "other")
    (corpus_folder / "train/b").symlink_to(tmp_path / "other/c")
    assert names(folder_corpus(corpus_folder))["train"] == ["train/a", "train/b"]
    assert capsys.readouterr().err == (
        f"pe-bench: {corpus_folder}: links to folders and broken links are left out: train/lost, "
        "train/more\n"
    )


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".json", ".parquet"])
@pytest.mark.parametrize("size", [1023, 1024])
def test_the_text_is_measured_not_the_file(tmp_path: Path, suffix: str, size: int) -> None:
    def pack(text: str) -> bytes:
        if suffix == ".parquet":
            sink = io.BytesIO()
            parquet.write_table(pyarrow.table({"text": [text], "more": ["x" * 2000]}), sink)
            return sink.getvalue()
        line = json.dumps({"text": text, "more": "x" * 2000}).encode()
        return gzip.compress(line) if suffix.endswith(".gz") else line

    write(tmp_path, {f"train{suffix}": pack("a" * size), f"test{suffix}": pack("b" * 1024)})
    if size < 1024:
        with pytest.raises(InputError, match=r"train part .* has 1023 bytes of UTF-8 text"):
            folder_corpus(tmp_path)
    else:
        assert folder_corpus(tmp_path).fingerprint


def test_what_is_read_in_another_way_has_another_fingerprint(tmp_path: Path) -> None:
    """Earlier versions read these files differently, so caches and results must not be mixed."""
    lines = json.dumps({"text": PAGE})
    contents = {"a.txt": "\ufeff" + PAGE, "a.json": lines, "a.ndjson": lines}
    for name, text in contents.items():
        folder = write(tmp_path / name, {f"train/{name}": text, "test/b.txt": PAGE})
        (file,) = folder_corpus(folder).train[0].files
        assert file.digest != hashlib.sha256(text.encode()).hexdigest()


def test_fingerprint_is_that_of_paths_and_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = folder_corpus(write(tmp_path, {"train/a.txt": PAGE, "test/b.txt": PAGE + "!"}))
    assert capsys.readouterr().err == ""
    lines = [("train/a.txt", PAGE), ("test/b.txt", PAGE + "!")]
    digests = [f"{name}\0{hashlib.sha256(text.encode()).hexdigest()}\n" for name, text in lines]
    assert corpus.fingerprint == hashlib.sha256("".join(digests).encode()).hexdigest()


@pytest.mark.parametrize("count", [3, 40, 100])
def test_folder_split_by_file(tmp_path: Path, count: int) -> None:
    files = {f"{i % 7}/{i}.md": f"{i} {PAGE}" for i in range(count)}
    one, two = (
        write(tmp_path / "one", files),
        write(tmp_path / "two", dict(reversed(files.items()))),
    )
    first, second = folder_corpus(one), folder_corpus(two)
    split = names(first)
    held_out = max(1, count // 20)
    assert [len(split[s]) for s in SPLITS] == [count - 2 * held_out, held_out, held_out]
    assert sorted(name for part in split.values() for name in part) == sorted(files)
    assert split == names(second)
    assert first.fingerprint == second.fingerprint


def test_programs_may_have_the_names_of_parts(tmp_path: Path) -> None:
    files = {name: f"{name} {PAGE}" for name in ("train.py", "test.py", "tests/test_a.py", "a.txt")}
    assert len(folder_corpus(write(tmp_path, files)).train[0].files) == 2


def test_a_copy_cannot_be_in_train_and_test(tmp_path: Path) -> None:
    files = {f"{i}.txt": f"{i % 5} {PAGE}" for i in range(50)}
    corpus = folder_corpus(write(tmp_path, files))
    assert [len(files) for files in names(corpus).values()] == [3, 1, 1]


def test_copies_of_training_files_in_the_test_part_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {f"{part}/{i}.txt": f"{i} {PAGE}" for i in (1, 2, 3) for part in ("train", "test")}
    files["test/3.txt"] = f"4 {PAGE}"
    folder_corpus(write(tmp_path, files))
    assert "2 of 3 test files are also in the training part, such as test/1.txt: remove" in (
        " ".join(capsys.readouterr().err.split())
    )


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (None, "no folder"),
        ({}, "0 different files"),
        ({"a.txt": PAGE, "b.txt": PAGE + "!"}, "at least 3"),
        ({"a.txt": PAGE, "b.txt": b"\xff", "c.txt": ""}, "1 different files"),
        ({"train/a.txt": PAGE}, "no test part"),
        ({"train/a.txt": PAGE, "test/.b.txt": PAGE}, "the test part .* has 0 bytes"),
        ({"train/a.txt": "short", "test/b.txt": PAGE}, "the train part .* has 5 bytes"),
        ({f"{part}/a.txt": PAGE for part in ("train", "test", "valid", "val")}, "valid and val"),
        ({"train/a.txt": PAGE, "test/b.txt": PAGE, "test.jsonl": PAGE}, r"test and test\.jsonl"),
        ({"train.jsonl": PAGE}, r"has train\.jsonl but no test part"),
        ({f"{part}.txt": PAGE for part in ("train", "valid", "test")}, r"has train\.txt and test"),
        ({f"w.{part}.tokens": PAGE for part in ("train", "test")}, r"w\.train\.tokens and w\.test"),
        ({f"{part}/a.txt": PAGE for part in ("Train", "Test")}, "has Train and Test"),
        ({f"d/{part}-0-of-2.json": PAGE for part in ("train", "dev")}, "d/train-0-of-2.json and d"),
        ({"train/a.txt": "é" * 500, "test/b.txt": PAGE}, "the train part .* has 1000 bytes"),
    ],
)
def test_folder_errors(
    tmp_path: Path, files: Mapping[str, str | bytes] | None, message: str
) -> None:
    folder = tmp_path / "corpus"
    if files is not None:
        folder.mkdir()
        write(folder, files)
    with pytest.raises(InputError, match=message):
        folder_corpus(folder)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder"):
        folder_corpus(write(tmp_path, {"a.txt": PAGE}) / "a.txt")


def test_the_shipped_corpus_is_what_was_frozen(cache_folder: Path) -> None:
    corpus = python_corpus()
    assert corpus.name == "python-v1" and corpus.fingerprint == PYTHON_FINGERPRINT
    assert not corpus.valid.files
    train, test = texts(corpus.train[0], cache_folder), texts(corpus.test, cache_folder)
    assert (len(train), len(test)) == (90, 11)
    assert (len("".join(train)), len("".join(test))) == (1_638_497, 340_883)
    assert not {*train} & {*test}
    longest = 512  # bytes: four times the training length of preset quick
    assert sum(len(text) // longest for text in test) >= 512  # windows of that preset
    assert all("".join(part).isascii() for part in (train, test))
    licence = (PYTHON_FOLDER / "LICENSE.txt").read_text(encoding="utf-8")
    assert "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2" in licence


def test_a_damaged_shipped_corpus_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(PYTHON_FOLDER, tmp_path / "text")
    monkeypatch.setattr("pe_bench.text.builtin_corpora.PYTHON_FOLDER", tmp_path / "text")
    python_corpus.cache_clear()
    assert python_corpus().fingerprint == PYTHON_FINGERPRINT
    damaged = tmp_path / "text" / "test.jsonl.gz"
    for content in (b"x", None):
        if content is None:
            damaged.unlink()
        else:
            damaged.write_bytes(content)
        python_corpus.cache_clear()
        with pytest.raises(InputError, match="missing or damaged: install pe-bench again"):
            python_corpus()
    python_corpus.cache_clear()


@pytest.mark.slow
@pytest.mark.skipif(
    sys.version_info[:3] != (3, 11, 7) or "pyenv" not in sysconfig.get_paths()["stdlib"],
    reason="the text is that of CPython 3.11.7 as built from source",
)
def test_the_shipped_corpus_is_that_of_its_script() -> None:
    script = load_script("docs/freeze_corpus.py")
    for split, content in script.make().items():
        shipped = (PYTHON_FOLDER / f"{split}.jsonl.gz").read_bytes()
        assert gzip.decompress(shipped) == gzip.decompress(content)  # zlib may pack otherwise
