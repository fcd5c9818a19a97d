"""The check of the built documentation finds what is dead, and nothing else."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "check_site.py"


def check(site: Path) -> tuple[int, list[str], str]:
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), str(site)], capture_output=True, text=True, check=False
    )
    return ended.returncode, ended.stdout.splitlines(), ended.stderr


def make_site(directory: Path, *links: str) -> Path:
    site = directory / "html"
    (site / "api").mkdir(parents=True)
    (site / "picture.svg").write_text("<svg/>")
    (site / "api" / "page.html").write_text('<h1 id="top">…</h1><a name="old"></a>')
    body = "".join(f'<a href="{link}">…</a>' for link in links)
    (site / "index.html").write_text(f'<p id="here"><img src="picture.svg"/>{body}')
    return site


def test_living_links(tmp_path: Path) -> None:
    site = make_site(
        tmp_path,
        *("#", "#here", "api/page.html", "api/page.html#top", "api/page.html#old"),
        *("picture.svg", "https://example.org/none", "mailto:nobody@example.org"),
    )
    assert check(site) == (0, ["no link within the documentation is dead"], "")


def test_dead_links(tmp_path: Path) -> None:
    (tmp_path / "outside.html").touch()
    site = make_site(tmp_path, "#there", "none.html", "api/page.html#here", "../outside.html")
    assert check(site) == (
        1,
        [
            "index.html: #there: no such anchor",
            "index.html: none.html: no such file",
            "index.html: api/page.html#here: no such anchor",
            "index.html: ../outside.html: leads out of the site",
        ],
        "",
    )


def test_nothing_was_built(tmp_path: Path) -> None:
    status, output, errors = check(tmp_path)
    assert (status, output) == (1, [])
    assert "make docs" in errors
