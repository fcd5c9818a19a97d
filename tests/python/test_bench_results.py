"""What ``freescale bench`` shows and writes."""

import csv
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from freescale_pg.bench.cell_report import report
from freescale_pg.bench.cells import Cell
from freescale_pg.bench.collectives import CollectivesMode
from freescale_pg.bench.mode import Outputs, read_json, write_csv, write_json
from freescale_pg.bench.results import CellResult, Timing
from freescale_pg.bench.table import markdown, parse_size, size_text

MIB = 1 << 20
MODE = CollectivesMode(("all_reduce",), (MIB,), None, None, "cpu", 1.0)


def result(size: int = MIB, failures: dict[str, str] | None = None, **medians: float) -> CellResult:
    cell = Cell("all_to_all_single", size, 2)
    timings = {name: Timing(median, median, median) for name, median in medians.items()}
    sizes = (cell.busiest_bytes, cell.total_bytes)
    return CellResult(cell.op, size, 2, *sizes, 7, timings, failures or {})


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_report_shows_times_speeds_and_ratios() -> None:
    text = report([result(limit=50.0, gloo=500.0, freescale=100.0, mpi=150.0)])
    header, row = (cells_of(line) for line in text.splitlines() if "size" in line or "MiB" in line)
    assert header[2:] == [
        "freescale", "gloo", "mpi", "limit", "vs gloo", "vs mpi", "vs limit",
    ]  # fmt: skip
    assert row[2] == "100 (10.5)"
    assert row[6:] == ["5.00", "1.50", "0.50"]


def test_report_has_a_column_for_who_failed_and_one_more() -> None:
    found = [result(freescale=100.0, failures={"nccl": "rank 0: no"}), result(64, freescale=9.0)]
    text = report(found, ("seen", lambda each: str(each.size)))
    header, _, failed, absent = (cells_of(line) for line in text.splitlines()[2:])
    column = header.index("nccl")
    assert (failed[column], absent[column]) == ("FAILED", "– (–)")
    assert failed[header.index("vs nccl")] == "–"
    assert (header[-1], failed[-1], absent[-1]) == ("seen", str(MIB), "64")


def test_report_without_freescale_has_no_ratios() -> None:
    assert "vs" not in report([result(gloo=500.0, limit=10.0)])


def test_files_hold_the_results(tmp_path: Path) -> None:
    found = [result(freescale=100.0, gloo=500.0), result(64, {"mpi": "rank 1: wrong"}, gloo=200.0)]
    records = [asdict(each) for each in found]
    write_json(tmp_path / "out.json", MODE, records)
    write_csv(tmp_path / "out.csv", MODE.lines(records))
    name, read = read_json(tmp_path / "out.json")
    assert name == "collectives"
    assert [CellResult.from_record(each) for each in read] == found
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["settings"]["sizes"] == [MIB]
    assert written["machine"]["cores"] >= 1
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["size"], row["contestant"], row["median_us"], row["failure"]) for row in rows] == [
        (str(MIB), "freescale", "100.0", ""),
        (str(MIB), "gloo", "500.0", ""),
        ("64", "gloo", "200.0", ""),
        ("64", "mpi", "", "rank 1: wrong"),
    ]
    assert [row["times_slower_than_freescale"] for row in rows] == ["1.0", "5.0", "", ""]


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text("[1]")
    with pytest.raises(ValueError, match=r"other\.json was not written by freescale bench --json"):
        read_json(path)


def test_files_that_cannot_be_written_are_refused_before(tmp_path: Path) -> None:
    Outputs(tmp_path / "a.json", tmp_path / "b.csv").check()
    assert not list(tmp_path.iterdir())
    with pytest.raises(OSError, match="absent is no folder"):
        Outputs(json=tmp_path / "absent" / "a.json").check()
    with pytest.raises(OSError, match="is a folder"):
        Outputs(csv=tmp_path).check()


def test_markdown_is_aligned() -> None:
    text = markdown(["op", "µs"], [["a", "1000"], ["bcd", "2"]])
    assert text.splitlines() == [
        "| op  |   µs |",
        "| --- | ---: |",
        "| a   | 1000 |",
        "| bcd |    2 |",
    ]


@pytest.mark.parametrize(
    ("text", "size"),
    [("64", 64), ("64B", 64), ("4KiB", 4096), ("3 MiB", 3 * MIB), ("2GiB", 2048 * MIB)],
)
def test_sizes_are_read_and_written(text: str, size: int) -> None:
    assert parse_size(text) == size
    assert parse_size(size_text(size)) == size


@pytest.mark.parametrize("text", ["", "0", "-4KiB", "4KB", "1.5MiB"])
def test_bad_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"size {text!r} is not a whole number from 1 on, with"):
        parse_size(text)
