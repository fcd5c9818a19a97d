"""What fs.trace() writes."""

import json
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import freescale_pg as fs
from freescale_pg import _C
from freescale_pg.observe import clocks
from freescale_pg.observe.chrome import Slice, slice_of, trace_events
from freescale_pg.observe.clocks import ClockDrift, ClockOffset, offset_of
from freescale_pg.observe.tracing import Recording, trace_document
from harness.late import call_last
from harness.launch import Launcher

LARGE = 300_000  # elements; far more than travels with a header

Event = dict[str, Any]


class Written:
    """A trace file, by rank and lane."""

    def __init__(self, path: Path) -> None:
        loaded = json.loads(path.read_text())
        self.about = loaded["freescale"]
        names = {
            (event["pid"], event["tid"]): event["args"]["name"]
            for event in loaded["traceEvents"]
            if event["name"] == "thread_name"
        }
        self.processes = {
            event["pid"]: event["args"]["name"]
            for event in loaded["traceEvents"]
            if event["name"] == "process_name"
        }
        self.lanes: dict[tuple[int, str], list[Event]] = defaultdict(list)
        for event in loaded["traceEvents"]:
            if event["ph"] == "X":
                self.lanes[event["pid"], names[event["pid"], event["tid"]]].append(event)

    def of_rank(self, rank: int) -> set[str]:
        return {lane for of, lane in self.lanes if of == rank}

    def check_nesting(self) -> None:
        """In a lane one is within the other, or behind it: viewers show nothing else."""
        for lane in self.lanes.values():
            open_until: list[float] = []
            for event in sorted(lane, key=lambda event: (event["ts"], -event["dur"])):
                while open_until and open_until[-1] <= event["ts"]:
                    open_until.pop()
                end = event["ts"] + event["dur"]
                assert event["ts"] >= 0 and (not open_until or end <= open_until[-1] + 1e-3)
                open_until.append(end)


# --- On ranks -------------------------------------------------------------------------------------


def exchange(count: int, group: dist.ProcessGroup | None = None, **options: Any) -> None:
    given = torch.ones(count * dist.get_world_size(group))
    fs.all_to_all_single(torch.empty_like(given), given, group=group, **options)


def check_written(rank: int, size: int, directory: str) -> None:
    path = Path(directory) / "out.json"
    group = dist.new_group([0, 2])
    dist.barrier()
    with fs.trace(path):
        exchange(LARGE, priority=fs.Priority.LOW)
        call_last(rank, size, "barrier", dist.barrier, "barrier")
        if rank != 1:
            exchange(5, group=group)
        works = [dist.all_reduce(torch.ones(9), async_op=True) for _ in range(3)]
        for work in works:
            assert work is not None
            work.wait()
    exchange(7)  # nobody looks any more
    if rank != 0:
        return
    written = Written(path)
    written.check_nesting()
    assert [each["rank"] for each in written.about["ranks"]] == [0, 1, 2]
    assert written.about["format"] == 1
    for each in written.about["ranks"]:
        assert each["dropped_events"] == 0
        assert each["clock_offset_ns"] == 0 and each["clock_error_ns"] >= 0  # one host
        assert each["clock_drift_ppm"] == 0
    assert [name.split(" (")[0] for name in written.processes.values()] == [
        "rank 0",
        "rank 1",
        "rank 2",
    ]
    check_messages(written)
    check_calls(written)


def check_messages(written: Written) -> None:
    for rank, peer in ((0, 1), (1, 2), (2, 0)):
        for word in ("to", "from"):
            (large,) = written.lanes[rank, f"{word} rank {peer}, LOW"]
            assert large["args"]["bytes"] == 4 * LARGE
            assert large["args"]["priority"] == "LOW"
            assert large["name"].startswith("all_to_all_single #")
    # By their ranks among all: the group of ranks 0 and 2 has no rank 2.
    (small,) = [
        event
        for event in written.lanes[0, "from rank 2, NORMAL"]
        if event["name"].startswith("all_to_all_single")
    ]
    assert small["args"]["bytes"] == 20 and small["dur"] == 0
    assert not any(
        event["name"].startswith("all_to_all_single")
        for event in written.lanes[1, "from rank 2, NORMAL"]
    )


def check_calls(written: Written) -> None:
    for rank in range(3):
        (barrier, *late) = written.lanes[rank, "calls of barrier"]
        # Rank 2 called when the others were known to wait.
        assert [event["name"] for event in late] == ["stragglers"] * (rank != 2)
        assert barrier["args"]["failed"] is False
        exchanges = written.lanes[rank, "calls of all_to_all_single"]
        calls = [event for event in exchanges if event["name"] != "stragglers"]
        assert [event["args"]["bytes_in"] for event in calls] == (
            [4 * 3 * LARGE] if rank == 1 else [4 * 3 * LARGE, 4 * 2 * 5]
        )
        assert "local" in calls[0]["args"]["paths"]
        reductions = [
            event
            for lane in written.of_rank(rank)
            if lane.startswith("calls of all_reduce")
            for event in written.lanes[rank, lane]
            if event["name"] != "stragglers"
        ]
        assert len(reductions) == 3 and len({event["name"] for event in reductions}) == 3
    assert any(lane.endswith("waits") for lane in written.of_rank(0))


@pytest.mark.freescale_only
def test_trace_of_ranks(launch: Launcher, tmp_path: Path) -> None:
    launch(check_written, 3, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def check_capacity(rank: int, size: int, directory: str) -> None:
    path = Path(directory) / "out.json"
    with fs.trace(path, capacity=4):
        for _ in range(10):
            dist.barrier()
    if rank == 0:
        written = Written(path)
        kept = sum(
            event["name"] != "stragglers" for lane in written.lanes.values() for event in lane
        )
        assert kept == 4 * size
        # On each rank of each barrier at least a message each way and the call.
        assert all(each["dropped_events"] >= 3 * 10 - 4 for each in written.about["ranks"])


@pytest.mark.freescale_only
def test_memory_is_bounded(launch: Launcher, tmp_path: Path) -> None:
    launch(check_capacity, 2, str(tmp_path))


def check_error(rank: int, size: int, directory: str) -> None:
    """A rank that leaves the block by an error must not wait for others, which go on elsewhere."""
    path = Path(directory) / "out.json"
    dist.barrier()
    with pytest.raises(KeyError), fs.trace(path if rank == 0 else path.with_name("other.json")):
        dist.barrier()
        if rank == 0:
            raise KeyError
        dist.barrier()  # of rank 0's, which is behind its block
        raise KeyError
    if rank == 0:
        dist.barrier()
    dist.barrier()


@pytest.mark.freescale_only
def test_error_within(launch: Launcher, tmp_path: Path) -> None:
    launch(check_error, 2, str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "other.rank1.json",
        "out.rank0.json",
    ]
    assert "calls of barrier" in Written(tmp_path / "out.rank0.json").of_rank(0)


def check_failed_call(rank: int, size: int, directory: str) -> None:
    with fs.trace(Path(directory) / "out.json"), pytest.raises(RuntimeError):
        dist.all_reduce(torch.ones(3 + rank))


@pytest.mark.freescale_only
def test_failed_calls(launch: Launcher, tmp_path: Path) -> None:
    launch(check_failed_call, 2, str(tmp_path))
    written = Written(tmp_path / "out.json")
    for rank in range(2):
        calls = written.lanes[rank, "calls of all_reduce"]
        assert calls[0]["args"]["failed"] is True


def check_off(rank: int, size: int) -> None:
    """Only a log that is open is told anything."""
    log = _C.TraceLog(100)
    log.close()
    dist.barrier()
    assert log.take() == [] and log.dropped == 0


@pytest.mark.freescale_only
def test_nothing_is_recorded_outside(launch: Launcher) -> None:
    launch(check_off, 2)


def test_arguments() -> None:
    with (
        pytest.raises(ValueError, match="capacity must be positive, got 0"),
        fs.trace("x", capacity=0),
    ):
        pass
    with pytest.raises(ValueError, match="there is no process group"), fs.trace("x"):
        pass


# --- Its parts ------------------------------------------------------------------------------------


def test_clock_offsets() -> None:
    """Asked at 1000 and heard at 1100: the other clock's 1050, in between, is its own 900,050."""
    ahead = offset_of(1000, 900_050, 1100)
    assert (ahead.offset_ns, ahead.error_ns) == (899_000, 50)
    behind = offset_of(1000, 50, 1100)
    assert (behind.offset_ns, behind.error_ns) == (-1000, 50)
    # It may be the same clock, with an answer soon after the question or just before it is heard.
    for answered in (1000, 1030, 1100):
        assert offset_of(1000, answered, 1100).offset_ns == 0
    assert offset_of(1000, 1101, 1100).offset_ns == 51


SECOND = 1_000_000_000


class SyntheticClock:
    """A clock that is ahead of the true time, and gets further ahead; in ns."""

    def __init__(self, ahead: int, ppm: int) -> None:
        self._ahead, self._ppm = ahead, ppm

    def at(self, true: int) -> int:
        return true + self._ahead + true * self._ppm // 1_000_000

    def compared(self, true: int, trip: int = 20_000) -> ClockOffset:
        """A round trip around a moment, by a first rank whose clock is the true one."""
        return offset_of(true - trip // 2, self.at(true), true + trip // 2)


CLOCKS = [SyntheticClock(0, 0), SyntheticClock(5 * SECOND, 40), SyntheticClock(-3 * SECOND, -70)]


def slice_at(clock: SyntheticClock, begin: int, end: int) -> Slice:
    return Slice((0, 0, 0, "x"), "call", "x", clock.at(begin), clock.at(end), 0, {})


def test_clocks_that_drift() -> None:
    """What was at one moment on all ranks is so in the trace: at the ends, and in between."""
    begin, last, moments = 10 * SECOND, 70 * SECOND, [11 * SECOND, 40 * SECOND, 69 * SECOND]
    drifts = [ClockDrift(each.compared(begin), each.compared(last)) for each in CLOCKS]
    recordings = [
        Recording(
            rank,
            "host",
            rank,
            clock.at(begin),
            0,
            [slice_at(clock, moment, moment + 1000) for moment in moments],
        )
        for rank, clock in enumerate(CLOCKS)
    ]
    written = trace_document(recordings, drifts, begin)
    shown = [event for event in written["traceEvents"] if event["ph"] == "X"]
    for rank in range(3):
        starts = [event["ts"] for event in shown if event["pid"] == rank]
        assert starts == pytest.approx([(each - begin) / 1e3 for each in moments], abs=0.01)
    about = written["freescale"]["ranks"]
    assert [each["clock_drift_ppm"] for each in about] == pytest.approx([0, 40, -70], abs=0.01)
    assert {each["clock_error_ns"] for each in about} == {10_000}
    # Compared only at the begin, a clock that drifts by 40 us a second is off by 2.4 ms at the end.
    once = ClockDrift(CLOCKS[1].compared(begin))
    assert CLOCKS[1].at(last) - once.offset_at(CLOCKS[1].at(last)) - last == 60 * 40_000


def test_one_clock_does_not_drift() -> None:
    """What two comparisons of the same clock differ by is how long they took."""
    same = ClockDrift(offset_of(1000, 1030, 1100), offset_of(9000, 9099, 9100))
    assert (same.rate, same.offset_at(5000), same.error_ns) == (0, 0, 50)
    # The worse comparison says how far off it may be, whichever of the two that is.
    better = offset_of(9000, 9030, 9060)
    assert ClockDrift(same.first, better).error_ns == ClockDrift(better, same.first).error_ns == 50
    # Near at the begin by chance: then the end tells.
    other = ClockDrift(offset_of(1000, 1030, 1100), offset_of(9000, 10_050, 9100))
    assert other.offset_at(1030) == -20 and other.offset_at(10_050) == 1000
    # The clocks were compared at one moment: there is no rate.
    assert ClockDrift(offset_of(0, 500, 100), offset_of(0, 500, 100)).rate == 0


class QuickOnce:
    """A group of two ranks whose second one answers at once in one round trip, else late.

    Its clock is 500 ahead of that of the first one, which is the only one that runs here.
    """

    def __init__(self) -> None:
        self.now = 0
        self._trips = 0

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 2

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int) -> "QuickOnce":
        self._trips += 1
        self.now += 10 if self._trips == 4 else 1000
        return self

    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int) -> "QuickOnce":
        tensors[0].fill_(self.now + 500)
        self.now += 10
        return self

    def wait(self) -> None:
        pass


def test_the_quickest_round_trip_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    group = QuickOnce()
    monkeypatch.setattr(clocks.time, "monotonic_ns", lambda: group.now)
    first, second = clocks.measure_offsets(group)  # type: ignore[arg-type]
    assert (second.measured_ns, second.error_ns) == (500, 10)
    assert (first.measured_ns, first.at_ns) == (0, group.now)


def message(begin: int, end: int, **others: Any) -> SimpleNamespace:
    known = {"kind": "message_in", "op": "broadcast", "priority": -2, "peer": 4, "sequence": 3}
    return SimpleNamespace(
        **(known | {"group": 0xAB, "bytes": 500, "begin": begin, "end": end} | others)
    )


def test_a_message_says_how_fast_it_was() -> None:
    shown = slice_of(message(1000, 1250))
    assert shown.name == "broadcast #3" and shown.lane[-1] == "from rank 4, URGENT"
    assert shown.arguments["GB/s"] == 2.0 and shown.arguments["group"] == "00000000000000ab"
    assert "GB/s" not in slice_of(message(1000, 1000)).arguments
    assert slice_of(message(0, 1, kind="message_out", sequence=0)).name == "broadcast"


def test_lanes() -> None:
    """Slices at the same time get rows of their own; lanes are in order; times are relative."""

    def slice_in(lane: str, place: int, begin: int, end: int, late: int = 0) -> Slice:
        return Slice((place, 0, 0, lane), "call", "x", begin, end, late, {})

    slices = [
        slice_in("b", 2, 5000, 9000, late=6000),
        slice_in("b", 2, 7000, 8000, late=99000),
        slice_in("b", 2, 9000, 9500, late=1000),
        slice_in("a", 1, 5000, 5000),
    ]
    events = trace_events(3, "rank 3", slices, lambda at: at - 4000)
    names = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert names == ["a", "b", "b (2)"]
    shown = [
        (event["tid"], event["name"], event["ts"], event["dur"])
        for event in events
        if event["ph"] == "X"
    ]
    assert shown == [
        (1, "x", 1.0, 0.0),
        (2, "x", 1.0, 4.0),
        (2, "stragglers", 1.0, 1.0),
        (2, "x", 5.0, 0.5),
        (3, "x", 3.0, 1.0),
        (3, "stragglers", 3.0, 1.0),
    ]
    assert {event["pid"] for event in events} == {3}
    # How long others were waited for stands in the slice, too.
    late = [event["args"] for event in events if event.get("cat") == "call"]
    assert late == [{}, {"stragglers_ns": 1000}, {}, {"stragglers_ns": 1000}]


def test_what_reads_a_trace_finds_it_in_arguments() -> None:
    shown = slice_of(message(0, 1, kind="message_out"))
    assert shown.category == "message" and shown.arguments["to"] == 4
    assert slice_of(message(0, 1)).arguments["from"] == 4
    wait = slice_of(message(0, 5, kind="wait", thread=7, ready=2))
    assert wait.category == "wait" and wait.arguments == {"priority": "URGENT", "thread": 7}
    join = slice_of(message(0, 5, kind="join", thread=7, joined=8))
    assert join.category == "join" and join.lane == wait.lane
    assert join.arguments == {"thread": 7, "joined": 8} and join.name == "for thread 8"
