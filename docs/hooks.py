"""Hooks of mkdocs: pages that are generated, links out of `docs/`, and a check of the result.

Pages of `docs/` link to other files of the repository with relative paths, as on any forge:
`../CHANGELOG.md`, `../results/quick/leaderboard.md`, `../examples/your_encoding.py`. The site gets
these files, too: Markdown as a page, images unchanged, and everything else as a page with its
text.
"""

import logging
import os
import posixpath
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import catalogue  # noqa: E402  (in this folder)

LOG = logging.getLogger("mkdocs.hooks.pe_bench")
LINK = re.compile(r"(?<=\]\()(?P<target>[^)#\s]+)(?=[)#])")
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\ssrc=["']?(?:https?:)?//"""
    r"""|<link\b(?=[^>]*\srel=["']?(?:stylesheet|preconnect|preload|icon))[^>]*\shref=["']?(?:https?:)?//"""
    r"""|url\(["']?(?:https?:)?//|@import ["'](?:https?:)?//""",
    re.IGNORECASE,
)
"""Patterns of resources that a browser loads from a network for a page or a style sheet."""
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md")  # of the repository's root, in the navigation
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".js": "javascript"}

_scratch: list[TemporaryDirectory[str]] = []  # folder of the catalogue while the site is built


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Write the catalogue, and put its pages into the navigation."""
    _scratch.append(TemporaryDirectory())
    families = catalogue.write(Path(_scratch[-1].name))
    pages: list[Any] = ["catalogue/index.md"]
    for family, names in families.items():
        pages.append({family: [{name: f"catalogue/{name}.md"} for name in names]})
    assert config.nav is not None
    config.nav = [{"Catalogue": pages} if "Catalogue" in part else part for part in config.nav]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the catalogue, and every file of the repository that a page links to."""
    written = Path(_scratch[-1].name)
    for path in sorted(written.iterdir()):
        introduction = files.get_file_from_path(f"catalogue/{path.name}")
        if introduction:
            files.remove(introduction)  # the generated index begins with it
        _add(files, config, f"catalogue/{path.name}", path)
    waiting = [*PAGES]
    for file in files.documentation_pages():
        waiting += _linked(_source(file.src_uri), file.content_string)
    while waiting:
        source = waiting.pop()
        uri = _uri(source)
        path = ROOT / source
        if files.get_file_from_path(uri) or not path.is_file():
            continue  # mkdocs reports a missing file as a broken link
        if path.suffix == ".md":
            waiting += _linked(source, path.read_text(encoding="utf-8"))
        if uri == source:
            _add(files, config, uri, path)
        else:
            files.append(File.generated(config, uri, content=_show(source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Change links to the paths of files in the site."""
    source = _source(page.file.src_uri)
    folder = posixpath.dirname(page.file.src_uri)

    def move(link: re.Match[str]) -> str:
        if _is_outside(link["target"]):
            return link["target"]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link["target"]))
        return posixpath.relpath(_uri(target), folder or ".")

    return LINK.sub(move, markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Warn about every page that loads something from a network; strict builds then fail."""
    for path in sorted(Path(config.site_dir).rglob("*")):
        if path.suffix in (".html", ".css"):
            text = path.read_text(encoding="utf-8")
            for found in LOADED.findall(re.sub(r"<code.*?</code>", "", text, flags=re.DOTALL)):
                LOG.warning(f"{path.relative_to(config.site_dir)} loads from a network: {found}")
    while _scratch:
        _scratch.pop().cleanup()


def _linked(source: str, markdown: str) -> list[str]:
    """Return the files outside `docs/` that a page links to, relative to the repository."""
    found = []
    for link in LINK.finditer(markdown):
        target = os.path.normpath(Path(source).parent / link["target"])
        if not _is_outside(link["target"]) and not target.startswith("docs/"):
            found.append(target)
    return found


def _is_outside(target: str) -> bool:
    """Whether a link leads out of the repository."""
    return ":" in target or target.startswith("/")


def _source(uri: str) -> str:
    """Return the path in the repository of a page of the site."""
    return uri if (ROOT / uri).is_file() else f"docs/{uri}"


def _uri(source: str) -> str:
    """Return the path in the site of a file of the repository."""
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    if source == "README.md":
        return "index.md"
    return source if Path(source).suffix in (".md", ".png") else f"source/{source}.md"


def _add(files: Files, config: MkDocsConfig, uri: str, path: Path) -> None:
    """Add a file that lies outside `docs/`."""
    files.append(File.generated(config, uri, abs_src_path=str(path)))


def _show(source: str) -> str:
    """Return a page with the text of a file."""
    text = (ROOT / source).read_text(encoding="utf-8")
    language = LANGUAGES.get(Path(source).suffix, "text")
    return f"# {source}\n\n````{language}\n{text}\n````\n"
