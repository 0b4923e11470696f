"""Every file in tests/golden has a source, and a test that uses all of its arrays."""

from pathlib import Path

TESTS = Path(__file__).parent
FILES = sorted(path.stem for path in TESTS.glob("golden/*.npz"))


def missing_from(text: str, quote: str) -> list[str]:
    return [name for name in FILES if f"{quote}{name}{quote}" not in text]


def test_every_file_is_opened() -> None:
    code = [path.read_text(encoding="utf-8") for path in TESTS.glob("test_golden_*.py")]
    assert missing_from("".join(code), '"') == []


def test_the_readme_names_every_file() -> None:
    assert missing_from((TESTS / "golden/README.md").read_text(encoding="utf-8"), "`") == []
