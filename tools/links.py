#!/usr/bin/env python3
"""Find links that lead nowhere within the checkout, or within a built site.

    python tools/links.py              # Markdown and notebooks, as GitHub resolves them
    python tools/links.py build/docs   # HTML

Links to other sites are not followed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from mdit_py_plugins.anchors import anchors_plugin

ROOT = Path(__file__).resolve().parents[1]
PAGES = (".html", ".ipynb", ".md")  # whose anchors are known
# The plugin's anchors are GitHub's.
MARKDOWN = MarkdownIt().enable("table").use(anchors_plugin, max_level=6)


class Page(HTMLParser):
    """The links of a page, and the anchors that others may lead to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("href", "src"):
                self.links.append(value or "")
            elif name == "id" or (tag, name) == ("a", "name"):
                self.anchors.add(value or "")


@cache
def read(path: Path) -> Page:
    text = path.read_text()
    if path.suffix == ".ipynb":
        cells = (cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown")
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    return Page(text if path.suffix == ".html" else MARKDOWN.render(text))


def broken(pages: Iterable[Path], root: Path = ROOT) -> Iterator[str]:
    """Yield what is wrong with the pages' links to files and anchors under `root`."""
    for path in pages:
        for link in read(path).links:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            anchor = unquote(url.fragment)
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            where = f"{path.relative_to(root)}: {link}"
            if not target.is_relative_to(root) or not target.exists():
                yield f"{where}: no such file"
            elif anchor and target.suffix in PAGES and anchor not in read(target).anchors:
                yield f"{where}: no such anchor"


def pages() -> list[Path]:
    """Return the checkout's pages."""
    patterns = ("*.md", "docs/*.md", "benchmarks/**/*.md", "tests/**/*.md", "notebooks/*.*")
    found = (path for pattern in patterns for path in ROOT.glob(pattern))
    return sorted(path for path in found if path.suffix in (".ipynb", ".md"))


if __name__ == "__main__":
    site = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else None
    wrong = list(broken(sorted(site.rglob("*.html")), site) if site else broken(pages()))
    sys.exit("\n".join(wrong) or None)
