"""Write the corpus python-v1 from the standard library of CPython 3.11.7.

    python docs/freeze_corpus.py

It was run once. `tests/test_corpus.py` checks that its output still equals the files.
"""

import gzip
import json
import platform
import re
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from pe_bench.system.files import write_atomic
from pe_bench.text.builtin_corpora import PYTHON_FOLDER, stdlib_corpus
from pe_bench.text.text_files import TextFile

VERSION = "3.11.7"
BYTES = range(4 * 1024, 64 * 1024 + 1)  # of a document
OF_EACH = (
    3  # maximum number of documents per module or package (the longest), so that none dominates
)
NOTICE = re.compile(r"copyright|licen[sc]e|all rights|permission|\(c\)", re.IGNORECASE)


def main() -> None:
    """Write the file of each split, and the licence."""
    if platform.python_version() != VERSION:
        sys.exit(f"this is Python {platform.python_version()}, but the corpus needs {VERSION}")
    for split, content in make().items():
        write_atomic(PYTHON_FOLDER / f"{split}.jsonl.gz", content)
    licence = Path(sysconfig.get_paths()["stdlib"]) / "LICENSE.txt"
    write_atomic(PYTHON_FOLDER / "LICENSE.txt", licence.read_bytes())


def make() -> dict[str, bytes]:
    """Return the content of the file of each split."""
    corpus = stdlib_corpus()
    train, test = corpus.train[0].files, (*corpus.valid.files, *corpus.test.files)
    return {"train": _pack(_choose(train)), "test": _pack(_choose(test))}


def _choose(files: Iterable[TextFile]) -> list[TextFile]:
    """Return the selected files: ASCII, neither short nor long, without a copyright notice."""
    groups: dict[str, list[TextFile]] = {}
    for file in files:
        text = file.path.read_bytes().decode()
        if file.size in BYTES and text.isascii() and not NOTICE.search(text):
            groups.setdefault(file.name.partition("/")[0], []).append(file)
    kept: list[TextFile] = []
    for group in groups.values():
        kept += sorted(group, key=lambda file: (-file.size, file.name))[:OF_EACH]
    return sorted(kept)


def _pack(files: Iterable[TextFile]) -> bytes:
    """Return files as gzipped JSON lines."""
    lines = []
    for file in files:
        text = file.path.read_bytes().decode()
        lines.append(json.dumps({"name": file.name, "text": text}) + "\n")
    return gzip.compress("".join(lines).encode(), mtime=0)


if __name__ == "__main__":
    main()
