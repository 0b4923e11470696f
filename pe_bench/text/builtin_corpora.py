"""Two built-in corpora: modules of a frozen Python, and of the running one."""

import sysconfig
from functools import cache
from pathlib import Path

from pe_bench.errors import DataError
from pe_bench.text.corpus import Corpus, Split
from pe_bench.text.text_files import TextFile, find_files, read_files

PYTHON = "python-v1"

PYTHON_FOLDER = Path(__file__).with_name(PYTHON)

PYTHON_FINGERPRINT = "7e6981d01a236287d002e87585881904599ec501da4f129e4f64d1177bf76ed0"

MIN_GROUPS = 150  # with fewer modules, the sources are missing


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# The recipe "stdlib-v1" is frozen: any change below needs a new name. A group is a top-level module
# or package that CPython 3.10 to 3.13 and Debian's Python all have. Tests, tables and files that
# differ between machines are left out. Modules that share text (bz2 and lzma, ntpath and
# posixpath, ...) are on one side of the split.
STDLIB_TEST = _names(
    """
    argparse asyncio dataclasses difflib imaplib inspect ipaddress mailbox pickletools plistlib
    statistics tarfile textwrap zoneinfo
    """
)

STDLIB_VALID = _names("calendar configparser dis enum fractions logging shutil webbrowser")

STDLIB_TRAIN = _names(
    """
    __future__ _aix_support _collections_abc _compat_pickle _compression _markupbase _osx_support
    _py_abc _pydecimal _pyio _sitebuiltins _strptime _threading_local _weakrefset abc antigravity
    ast base64 bdb bisect bz2 cProfile cmd code codecs codeop collections colorsys compileall
    concurrent contextlib contextvars copy copyreg csv ctypes datetime decimal doctest email
    filecmp fileinput fnmatch ftplib functools genericpath getopt getpass gettext glob graphlib
    gzip hashlib heapq hmac html http importlib io json keyword linecache locale lzma mimetypes
    modulefinder multiprocessing netrc ntpath nturl2path numbers opcode operator optparse os pdb
    pickle pkgutil platform poplib posixpath pprint profile pstats pty py_compile pyclbr pydoc
    queue quopri random reprlib rlcompleter runpy sched secrets selectors shelve shlex signal
    site smtplib socket socketserver sqlite3 sre_compile sre_constants sre_parse ssl stat string
    stringprep struct subprocess symtable tabnanny tempfile this threading timeit token tokenize
    trace traceback tracemalloc tty types typing unittest urllib uuid venv warnings wave weakref
    wsgiref xml xmlrpc zipapp zipimport
    """
)

_STDLIB_SKIPPED = {"__pycache__", "test", "tests", "idle_test"}


@cache
def python_corpus() -> Corpus:
    """Return modules of the library of CPython 3.11.7: 1.6 MB to train on, 0.3 MB to test on.

    The files are part of this package, so the text is the same on every machine. A README in their
    folder states their origin and licence.

    Raises:
        DataError: the files are missing or differ from the shipped ones.
    """
    parts: dict[Split, list[TextFile]] = {}
    splits: tuple[Split, ...] = ("train", "test")
    for split in splits:
        path = PYTHON_FOLDER / f"{split}.jsonl.gz"
        parts[split] = read_files(PYTHON_FOLDER, [path])
    corpus = Corpus.of_files(PYTHON, parts)
    if corpus.fingerprint != PYTHON_FINGERPRINT:
        raise DataError(
            f"files of the built-in text in {PYTHON_FOLDER} are missing or damaged: install "
            "pe-bench again"
        )
    return corpus


def stdlib_corpus() -> Corpus:
    """Return the standard library of the running Python: about 5.2, 0.5 and 1.4 MB of source code.

    Text and fingerprint differ between Python versions.

    Raises:
        DataError: the sources are not on this machine (a zipped or frozen Python).
    """
    return _stdlib_in(Path(sysconfig.get_paths()["stdlib"]))


@cache  # several tasks of a run use it
def _stdlib_in(root: Path) -> Corpus:
    groups: dict[str, list[TextFile]] = {}
    for group in STDLIB_TRAIN | STDLIB_VALID | STDLIB_TEST:
        files = [root / f"{group}.py", *find_files(root / group, _STDLIB_SKIPPED)]
        groups[group] = read_files(root, (path for path in files if path.suffix == ".py"))
    found = sum(map(bool, groups.values()))
    if found < MIN_GROUPS:
        raise DataError(
            f"only {found} of the {len(groups)} modules that make up the built-in text are in "
            f"{root}; use a Python installed with its .py files, or give a folder of text files"
        )

    def part(chosen: frozenset[str]) -> list[TextFile]:
        return sorted(file for group in chosen for file in groups[group])

    return Corpus.of_files(
        "stdlib-v1",
        {"train": part(STDLIB_TRAIN), "valid": part(STDLIB_VALID), "test": part(STDLIB_TEST)},
    )
