"""What is read of a run's directory, and what is said where it is damaged."""

import copy
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from freescale_pg.observe.run_files import (
    read_json,
    summaries,
    summary_path,
    trace_path,
    write_json,
)
from freescale_pg.report.page import render
from freescale_pg.report.reading import read_run
from freescale_pg.report.sections import sections_of
from report_runs import MS, STEPS, summary, write_run


def test_all_is_read(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path))
    assert run.size == 2 and list(run.ranks) == [0, 1] and run.missing == ()
    rank = run.ranks[1]
    assert (rank.host, rank.process, rank.state, rank.error) == ("node<1>", 101, "finished", None)
    assert [step.time.number for step in rank.steps] == list(range(STEPS))
    assert (rank.steps[2].begin, rank.steps[2].end) == (20 * MS, 30 * MS)
    assert run.bubbles.bubble == pytest.approx(0.275)
    assert run.ranks[0].loads.tolist()[1] == [10 * MS, 10 * MS + MS // 2]
    trace = rank.trace
    assert trace is not None and len(trace.calls) == 2 * STEPS and len(trace.waits) == STEPS
    assert len(trace.messages) == 4 * STEPS
    assert [each.epoch for each in run.balance] == [0, 1]
    assert run.workload is not None and run.workload.lengths.tolist() == [1, 2, 3, 10]
    # Rank 0 has waited for rank 1, and not the other way round.
    first = run.ranks[0].trace
    assert first is not None
    waits = [(wait.begin, wait.ready, wait.end) for wait in (first.waits[0], trace.waits[0])]
    assert waits == [(6 * MS, 9 * MS, 10 * MS), (9 * MS, 9 * MS, 10 * MS)]


def test_no_run(tmp_path: Path) -> None:
    (tmp_path / "rank0.json.old").touch()
    with pytest.raises(ValueError, match=f"{tmp_path} holds no run: it has no file rank0.json"):
        read_run(tmp_path)
    with pytest.raises(FileNotFoundError, match="absent"):
        read_run(tmp_path / "absent")


def test_a_rank_is_absent(tmp_path: Path) -> None:
    write_run(tmp_path, ranks=20)
    for rank in range(3, 14):
        summary_path(tmp_path, rank).unlink()
    summary_path(tmp_path, 19).unlink()
    run = read_run(tmp_path)
    assert len(run.ranks) == 8
    assert run.missing == ("ranks 3, 4, 5, 6, 7, 8, 9, 10 and 4 more of 20: no file",)


DAMAGES: dict[str, tuple[dict[str, Any], str]] = {
    "another kind": ({"kind": "flight"}, "its kind is 'flight'"),
    "a newer format": ({"format": 2}, "has format 2; this version reads 1"),
    "no ranks": ({"ranks": 0}, "is of 0 ranks"),
    "a step without a time": ({"steps": [{"step": 1}]}, "cannot be used: it has no 'blocked'"),
    "another rank's": ({"rank": 0}, "cannot be used: it is of rank 0"),
    "a state": ({"state": "lost"}, "its state is 'lost', none of running, finished, failed"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_rank_is_damaged(tmp_path: Path, damage: str) -> None:
    changes, reason = DAMAGES[damage]
    write_run(tmp_path)
    write_json(summary_path(tmp_path, 1), {**summary(1, 2), **changes})
    run = read_run(tmp_path)
    assert list(run.ranks) == [0]
    (missing,) = run.missing
    assert str(summary_path(tmp_path, 1)) in missing and reason in missing


def test_no_rank_can_be_read(tmp_path: Path) -> None:
    write_run(tmp_path)
    summary_path(tmp_path, 0).write_text('{"kind": ')
    summary_path(tmp_path, 1).write_text("[]")
    with pytest.raises(ValueError, match=r"rank0.json is damaged: .*; .*rank1.json holds a list"):
        read_run(tmp_path)


def test_files_of_two_runs(tmp_path: Path) -> None:
    write_run(tmp_path)
    write_json(summary_path(tmp_path, 1), {**summary(1, 2), "run": "another"})
    with pytest.raises(
        ValueError, match=r"rank0.json and .*rank1.json are of different .* 00112233 and another"
    ):
        read_run(tmp_path)


def test_ranks_that_did_not_end_well(tmp_path: Path) -> None:
    write_run(tmp_path)
    lost = {"state": "failed", "error": "RuntimeError: rank 1 is lost"}
    write_json(summary_path(tmp_path, 0), {**summary(0, 2), **lost})
    write_json(summary_path(tmp_path, 1), {**summary(1, 2), "state": "running", "trace": None})
    run = read_run(tmp_path)
    assert run.missing[0] == "rank 0 failed: RuntimeError: rank 1 is lost"
    assert run.missing[1].startswith("rank 1 did not end its recording")
    assert run.ranks[1].trace is None


@pytest.mark.parametrize("what", ["cut short", "no gzip", "an event", "gone"])
def test_a_trace_is_damaged(tmp_path: Path, what: str) -> None:
    path = trace_path(write_run(tmp_path), 1)
    whole = path.read_bytes()
    if what == "gone":
        path.unlink()
    elif what == "an event":
        held = {"traceEvents": [{"cat": "wait", "ts": 1, "dur": 2, "args": {"thread": 1}}]}
        write_json(path, held)
    else:
        path.write_bytes(whole[:-30] if what == "cut short" else b"{}")
    run = read_run(tmp_path)
    assert run.ranks[1].trace is None and run.ranks[0].trace is not None
    (missing,) = run.missing
    assert missing.startswith("no trace of rank 1") and str(path) in missing


def places(held: Any, trail: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """All places of a JSON value that hold something, the outer ones first."""
    if trail:
        yield trail
    if isinstance(held, dict | list):
        for key in held if isinstance(held, dict) else range(min(len(held), 1)):
            yield from places(held[key], (*trail, key))


@pytest.mark.parametrize("path_of", [summary_path, trace_path])
def test_no_damage_is_a_crash(tmp_path: Path, path_of: Callable[[Path, int], Path]) -> None:
    """Whatever is in the files: a page with what can be used, or a reason."""
    path = path_of(write_run(tmp_path), 0)
    whole = read_json(path)
    if "traceEvents" in whole:
        # One of each kind is enough.
        kinds = {event.get("cat"): event for event in whole["traceEvents"]}
        whole = {"traceEvents": list(kinds.values())}
    tried, crashes = 0, []
    for trail in places(whole):
        for junk in (None, -1, 1e30, "<b>", [], float("nan")):
            damaged = copy.deepcopy(whole)
            outer = damaged
            for key in trail[:-1]:
                outer = outer[key]
            outer[trail[-1]] = junk
            data = json.dumps(damaged).encode()
            path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
            try:
                run = read_run(tmp_path)
                page = render(run, sections_of(run))
            except ValueError as error:
                assert str(error), trail
            except Exception as error:
                crashes.append(f"{trail} = {junk!r}: {error!r}")
            else:
                assert "</html>" in page and "<b>" not in page, trail
            tried += 1
    assert tried > 40
    assert not crashes, "\n".join(crashes)


def test_files_are_whole_or_not_there(tmp_path: Path) -> None:
    path = summary_path(tmp_path, 3)
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert read_json(path) == {"a": 1}
    assert [each.name for each in tmp_path.iterdir()] == ["rank3.json"]
    (tmp_path / "rank10.json").touch()
    assert [rank for rank, _ in summaries(tmp_path)] == [3, 10]
