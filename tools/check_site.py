"""Fails if a page of the built documentation links to a file or an anchor that is not there.

Sphinx checks what pages say; this checks what came out, tables of contents, pages of source files
and pictures included. Links to other sites are not followed.

Usage:
    python tools/check_site.py [DIRECTORY]
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_DEFAULT = Path(__file__).resolve().parents[1] / "build" / "docs" / "html"


@dataclass
class Page:
    """What a page offers to links, and where its own lead."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if name == "id" or (tag == "a" and name == "name"):
                self.page.anchors.add(value)
            elif name in ("href", "src"):
                self.page.links.append(value)


def read(path: Path) -> Page:
    """Reads a page."""
    reader = _Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    reader.close()
    return reader.page


def dead_links(site: Path) -> Iterator[str]:
    """Yields a line for each link that leads nowhere."""
    pages = {path: read(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        for link in page.links:
            problem = _problem(site, path, link, pages)
            if problem is not None:
                yield f"{path.relative_to(site)}: {link}: {problem}"


def _problem(site: Path, path: Path, link: str, pages: dict[Path, Page]) -> str | None:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_relative_to(site):
        return "leads out of the site"
    if not target.is_file():
        return "no such file"
    # "#" alone is the top of a page.
    if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
        return "no such anchor"
    return None


def main(arguments: list[str]) -> int:
    """Prints what is dead; returns 1 if anything is."""
    site = Path(arguments[0] if arguments else _DEFAULT).resolve()
    if not (site / "index.html").is_file():
        print(f"{site} holds no built documentation: make docs", file=sys.stderr)
        return 1
    dead = list(dead_links(site))
    print("\n".join(dead) if dead else "no link within the documentation is dead")
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
