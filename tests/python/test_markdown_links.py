"""What Markdown files link to, or name as a path of the repository, is there."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("docs", "benchmarks", "examples", "gpu_check", "tests")
PAGES = sorted([*ROOT.glob("*.md"), *(p for f in FOLDERS for p in (ROOT / f).rglob("*.md"))])
TOP = "backend|benchmarks|cmake|cpp|docs|examples|gpu_check|python|requirements|tests|tools"

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
SPAN = re.compile(r"`([^`\n]+)`")
PATH = re.compile(rf"(?:{TOP})/[\w./-]*")


def prose(page: Path) -> str:
    """The page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """What headings are called in links, where repositories are browsed and in the site."""
    titles = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).strip().lower() for title in titles)
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in plain}


def dead(page: Path) -> Iterator[str]:
    text = prose(page)
    for link in LINK.findall(SPAN.sub("", text)) + LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            yield f"{link}: no such file"
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            yield f"{link}: no such heading"
    for span in SPAN.findall(text):
        # A name may be cut short, as `cpp/device/host_copy` is for header and source.
        if PATH.fullmatch(span) and not any(ROOT.glob(f"{span.rstrip('/')}*")):
            yield f"`{span}`: no such path"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_lead_somewhere(page: Path) -> None:
    assert not list(dead(page))


def test_dead_ones_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b`: c\n[1](#a-b-c) [2](#a-c) [3](page.md#a-b-c) [4](none.md) [`5`](none.py)\n"
        "`docs/reference.md` `docs/none.md` `cpp/none/` `either/or` [6](https://example.org)\n"
        "```\n[7](none.md)\n```\n"
    )
    assert sorted(set(dead(page))) == [
        "#a-c: no such heading",
        "`cpp/none/`: no such path",
        "`docs/none.md`: no such path",
        "none.md: no such file",
        "none.py: no such file",
    ]
