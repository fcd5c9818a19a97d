"""The page, and the command that makes it."""

import builtins
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from freescale_pg.cli.main import main
from freescale_pg.observe.run_files import read_json, summary_path, trace_path, write_json
from freescale_pg.report.page import render
from freescale_pg.report.reading import read_run
from freescale_pg.report.sections import sections_of
from freescale_pg.report.traffic import traffic_of
from report_runs import write_run

SECTIONS = ["breakdown", "timeline", "imbalance", "links", "latency", "scaling", "operations"]


class Parsed(HTMLParser):
    """What a page consists of. It fails where tags do not match."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "img", "br"):
            self.open.append(tag)
            if tag in ("td", "th"):
                self.cells.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += data


def page_of(directory: Path, **options: Any) -> str:
    run = read_run(directory)
    return render(run, sections_of(run, **options))


def check_self_contained(page: str) -> None:
    """Nothing in it makes a browser ask for anything, and nothing in it runs."""
    parsed = Parsed(page)
    tags = {tag for tag, _ in parsed.seen}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "base", "image", "use"}
    for tag, attributes in parsed.seen:
        assert not any(name.startswith("on") or name in ("src", "style") for name in attributes)
        href = attributes.get("href")
        assert href is None or (tag == "a" and href.startswith("#")), href
    assert "://" not in page and "url(" not in page and "@import" not in page
    policies = [
        attributes["content"]
        for tag, attributes in parsed.seen
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_page(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path))
    check_self_contained(page)
    parsed = Parsed(page)
    assert [each["id"] for tag, each in parsed.seen if tag == "section"] == SECTIONS
    assert [each["href"] for tag, each in parsed.seen if tag == "a"] == [f"#{x}" for x in SECTIONS]
    assert "27.5 % of the ranks' time is bubble" in re.sub("&#x27;", "'", page)
    row = parsed.cells.index("rank 0")
    # Steps, their time, compute, loader, stragglers, communication, bubble.
    assert parsed.cells[row : row + 8] == [
        "rank 0", "5", "10.0 ms", "55.0 %", "5.0 %", "30.0 %", "10.0 %", "45.0 %",
    ]  # fmt: skip
    assert "1.500" in page and "1.250 times as balanced" in page
    assert "Not all is here" not in page
    # Each plot has a name of its own, and each table a caption.
    drawings = [each for tag, each in parsed.seen if tag == "svg"]
    assert len(drawings) == 6 and all(each["role"] == "img" for each in drawings)
    names = {each["aria-labelledby"] for each in drawings}
    titles = {each.get("id") for tag, each in parsed.seen if tag == "title"}
    assert len(names) == 6 and names <= titles
    tags = [tag for tag, _ in parsed.seen]
    assert tags.count("table") == tags.count("caption") >= 7


def test_names_are_text(tmp_path: Path) -> None:
    evil = '<img src=x onerror=alert(1)>"&'
    write_run(tmp_path, host=evil, error=evil, state="failed", torch=evil, backend=evil, run=evil)
    page = page_of(tmp_path)
    check_self_contained(page)
    assert "<img" not in page and page.count("&lt;img src=x onerror=alert(1)&gt;&quot;&amp;") >= 4


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    empty = {"steps": [], "loads": [], "operations": [], "links": [], "balance": [], "trace": None}
    page = page_of(write_run(tmp_path, **empty, workload=None))
    check_self_contained(page)
    for text in (
        "No step was recorded.",
        "No rank has left a trace of a whole step.",
        "No sampler was recorded",
        "No messages were traced",
        "No calls of this backend were traced.",
        "Not simulated: no simulation was asked for.",
        "has counted no calls",
    ):
        assert text in page, text


def test_missing_files_are_named(tmp_path: Path) -> None:
    write_run(tmp_path, ranks=3)
    summary_path(tmp_path, 2).unlink()
    trace_path(tmp_path, 1).unlink()
    page = page_of(tmp_path)
    assert "Not all is here" in page and "rank 2 of 3: no file" in page
    assert "no trace of rank 1" in page and "rank1.trace.json.gz" in page


# --- The command ----------------------------------------------------------------------------------


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path)
    assert main(["report", str(tmp_path), "--no-simulate", "--steps", "2"]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "report.html")]
    page = (tmp_path / "report.html").read_text()
    check_self_contained(page)
    assert "Steps 2 to 3" in page and "--no-simulate was given" in page
    other = tmp_path / "other.html"
    summary_path(tmp_path, 1).unlink()
    assert main(["report", str(tmp_path), "-o", str(other), "--no-simulate", "--first-step=3"]) == 0
    assert "missing: rank 1 of 2: no file" in capsys.readouterr().out
    assert "Steps 3 to 4, from step 3 on" in other.read_text()


def test_simulation_takes_samples_and_costs_from_the_run(tmp_path: Path) -> None:
    write_run(tmp_path)
    assert main(["report", str(tmp_path), "--simulate=--slowdown-percent 0 --steps 2"]) == 0
    page = (tmp_path / "report.html").read_text()
    check_self_contained(page)
    assert "this run&#x27;s, 4 on each rank" in page and "computed here, 7.25 ms a step" in page
    parsed = Parsed(page)
    start = parsed.cells.index("bubbles gone")
    rows = [parsed.cells[at : at + 8] for at in range(start + 1, start + 1 + 16 * 8, 8)]
    assert [row[0] for row in rows[::4]] == ["8", "64", "512", "4,096"]
    assert [row[1] for row in rows[:4]] == [
        "baseline", "+ balance", "+ prioritised overlap", "+ SM-free",
    ]  # fmt: skip
    assert {row[6] for row in rows} == {"0.00 %"}  # no slowdown
    # A rank with four samples of 10 tokens, of 4 on average, computes 2.5 times as long.
    bubble = {row[0]: float(row[3].split()[0]) for row in rows if row[1] == "baseline"}
    assert 40 < bubble["4,096"] < 62 and bubble["8"] < bubble["4,096"]


def test_simulation_without_a_sampler(tmp_path: Path) -> None:
    write_run(tmp_path, workload=None)
    assert main(["report", str(tmp_path)]) == 0
    assert "Not simulated: the run has no sampler" in (tmp_path / "report.html").read_text()


def test_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 1
    assert f"freescale: {tmp_path} holds no run" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "absent")]) == 1
    assert "absent" in capsys.readouterr().err
    write_run(tmp_path)
    for options, reason in (
        (["--steps", "0"], "steps must be positive, got 0"),
        (["--first-step", "9"], "no rank has traced step 9"),
        (["--simulate=--steps 0"], "--steps must be positive, got 0"),
    ):
        assert main(["report", str(tmp_path), *options]) == 1
        assert reason in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()
    with pytest.raises(SystemExit, match="2"):
        main(["report", str(tmp_path), "--no-simulate", "--simulate=x"])


def test_plots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    write_run(tmp_path)
    assert main(["report", str(tmp_path), "--no-simulate", "--png", str(tmp_path / "plots")]) == 0
    written = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert written == [
        f"{name}.png"
        for name in ("breakdown", "imbalance", "latency", "links", "steps", "timeline")
    ]
    assert all(str(tmp_path / "plots" / name) in capsys.readouterr().out for name in written[:1])


def test_plots_need_matplotlib(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load = builtins.__import__

    def refuse(name: str, *others: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return load(name, *others)

    write_run(tmp_path)
    monkeypatch.setattr(builtins, "__import__", refuse)
    assert main(["report", str(tmp_path), "--no-simulate", "--png", str(tmp_path / "plots")]) == 1
    assert "pip install 'freescale_pg[report]'" in capsys.readouterr().err
    assert (tmp_path / "report.html").exists()


def test_it_needs_no_torch(tmp_path: Path) -> None:
    """Runs are looked at on machines that cannot train; only the simulation is left out."""
    write_run(tmp_path)
    program = (
        "import sys; sys.modules['torch'] = None; from freescale_pg.cli.main import main;"
        f" sys.exit(main(['report', {str(tmp_path)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Not simulated: it needs torch" in (tmp_path / "report.html").read_text()


ONLINE = {
    **{"batches": 4, "skipped": 1, "samples": 200, "samples_moved": 30, "bytes_moved": 4000},
    **{"before": 1.625, "after": 1.0625, "floor": 1.03125, "recent": [[1.5, 1.25, 1.0]]},
}


def test_an_online_balancer_has_its_section(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, online=ONLINE))
    sections = {each.name: each for each in sections_of(run)}
    online = sections["online"]
    for word in ("1.625 times", "1.062 times once 15.0 % of them had moved", "below 1.031"):
        assert word in online.lead
    rows = dict(online.tables[0].rows)
    assert rows["of which nothing moved"] == "1" and rows["of which moved"].startswith("30, ")
    assert list(online.figures) == ["online"]


@pytest.mark.parametrize("change", [{"samples_moved": 201}, {"after": 0.5}, {"recent": 3}])
def test_a_damaged_online_balance_is_left_out(tmp_path: Path, change: dict[str, Any]) -> None:
    run = read_run(write_run(tmp_path, online={**ONLINE, **change}))
    assert run.online is None and any("the online that rank 0" in each for each in run.missing)


def test_links_have_what_was_counted(tmp_path: Path) -> None:
    """Counters know what traces had no room for; both ends agree."""
    rows = [{"peer": 1, "bytes_sent": 7_000_000_000, "bytes_received": 0}]
    write_run(tmp_path)
    held = read_json(summary_path(tmp_path, 0))
    write_json(summary_path(tmp_path, 0), {**held, "traffic": rows})
    run = read_run(tmp_path)
    links = {(each.source, each.target): each for each in traffic_of(run)}
    assert links[0, 1].counted_bytes == links[0, 1].total_bytes == 7_000_000_000
    assert links[1, 0].counted_bytes == 0, "as its receiver counted it"
    (section,) = [each for each in sections_of(run) if each.name == "links"]
    assert "from rank 0 to rank 1: 7.00 GB" in section.lead
