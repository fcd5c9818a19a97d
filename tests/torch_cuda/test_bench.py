"""``freescale bench --device cuda`` on the stand-in: all but the speed of a device."""

import threading
import time
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from freescale_pg.bench import clocks
from freescale_pg.bench.cells import OPS, REDUCTIONS
from freescale_pg.bench.collectives import CollectivesMode
from freescale_pg.bench.contestants import synchronized
from freescale_pg.bench.exchange import Exchange, OfStream, group_of_priority
from freescale_pg.bench.mode import Mode, Record
from freescale_pg.bench.overlap import MEASURED_STEPS, OverlapMode, step_times
from freescale_pg.bench.priority import PriorityMode
from freescale_pg.bench.ranks import Ranks
from freescale_pg.bench.results import CellResult
from host_operations import computing_on_host
from ranks import Ranks as Launcher
from stand_in import Gate

# Reductions need kernels, which the stand-in does not run.
MOVES = tuple(op for op in OPS if op not in REDUCTIONS)


def measure(rank: int, world_size: int, ops: tuple[str, ...]) -> list[CellResult]:
    mode = CollectivesMode(ops, (64, 4096), None, ("freescale", "limit"), "cuda", 0.01)
    mode.check(world_size)
    records = mode.measure(Ranks(rank, world_size, None))
    return [CellResult.from_record(record) for record in records]


def run(run_ranks: Launcher, ops: tuple[str, ...]) -> list[CellResult]:
    found: list[CellResult] = run_ranks(2, measure, ops, backend="gloo", checks_footprint=False)[0]
    assert [(each.op, each.size) for each in found] == [(op, s) for op in ops for s in (64, 4096)]
    return found


def test_moves_are_timed_and_checked(run_ranks: Launcher) -> None:
    for each in run(run_ranks, MOVES):
        assert each.failures == {}
        assert list(each.timings) == ["freescale", "limit"]
        assert min(timing.median_us for timing in each.timings.values()) > 0


def test_what_fails_on_a_device_is_named(run_ranks: Launcher) -> None:
    for each in run(run_ranks, ("all_reduce",)):
        assert list(each.timings) == ["limit"]
        assert each.failures["freescale"].startswith("rank 0: ")


def wait_for_device(rank: int, world_size: int) -> None:
    stream = torch.cuda.Stream()
    target, source = torch.zeros(8).cuda(), torch.ones(8).cuda()
    opened = threading.Event()

    def open_late() -> None:
        opened.set()
        gate.open()

    def call() -> None:
        with torch.cuda.stream(stream):
            target.copy_(source)
        threading.Timer(0.2, open_late).start()

    with Gate(stream) as gate:
        synchronized(call, torch.device("cuda", rank))()
        assert opened.is_set()
        assert target.tolist() == [1.0] * 8


def test_a_timed_call_lasts_until_its_device_is_idle(run_ranks: Launcher) -> None:
    run_ranks(1, wait_for_device, init=False)


# --- Exchanges in flight --------------------------------------------------------------------------


class Held(dist.Work):
    """A call that its stream waits for until somebody opens a gate."""

    def __init__(self) -> None:
        super().__init__()
        self._gate: Gate | None = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        if self._gate is None:
            self._gate = Gate()
        return True

    def open(self) -> None:
        assert self._gate is not None
        self._gate.open()


ROUNDING = 1e-4  # seconds; events are told in milliseconds, as float32


def look_at_flight(rank: int, world_size: int) -> None:
    """It lasts from when its stream comes to it until that goes on, whenever the host asks."""
    stream, work = torch.cuda.Stream(), Held()
    busy = Gate(stream)
    flight = OfStream(lambda: work, stream)
    assert not flight.is_over and torch.cuda.current_stream().query()
    time.sleep(0.2)
    before = time.perf_counter()
    busy.open()
    work.open()
    while not flight.is_over:
        time.sleep(0.001)
    after = time.perf_counter()
    time.sleep(0.2)
    assert 0 < flight.wait() <= after - before + ROUNDING


def hold_flight(rank: int, world_size: int) -> None:
    """What its stream waits for is its time."""
    work, reached = Held(), []

    def issue() -> dist.Work:
        torch.cuda.current_stream().synchronize()
        reached.append(time.perf_counter())
        return work

    flight = OfStream(issue, torch.cuda.Stream())
    time.sleep(0.1)
    held = time.perf_counter() - reached[0]
    assert not flight.is_over
    work.open()
    assert flight.wait() >= held - ROUNDING


@pytest.mark.parametrize("body", [look_at_flight, hold_flight])
def test_an_exchange_is_timed_by_its_stream(run_ranks: Launcher, body: Any) -> None:
    run_ranks(1, body, init=False)


def exchange_on_device(rank: int, world_size: int) -> None:
    device = torch.device("cuda", rank)
    ranks = Ranks(rank, world_size, None)
    exchange = Exchange(4096, ranks, group_of_priority("freescale", "URGENT"), device)
    assert not exchange.is_correct()
    begin, end = exchange.run()
    assert begin == 0 and end > 0
    assert exchange.is_correct()
    assert exchange.bytes_to_others == 2048


def test_an_exchange_of_a_device_is_checked(run_ranks: Launcher) -> None:
    run_ranks(2, exchange_on_device, backend="gloo", checks_footprint=False)


# --- Clocks of streams ----------------------------------------------------------------------------


def time_blocks(rank: int, world_size: int) -> None:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        clock = clocks.make_clock(torch.device("cuda", rank))
    kept: list[tuple[str, float, float]] = []

    def timing(name: str) -> Any:
        return clock.timing(lambda *span: kept.append((name, *span)))

    def enqueue() -> None:
        with torch.cuda.stream(stream), timing("of another thread"):
            pass

    started = time.monotonic()
    with timing("on another stream"):
        pass
    with torch.cuda.stream(stream):
        stream.synchronize()
        with timing("held"):
            gate = Gate()
        with timing("not held"):
            pass
    thread = threading.Thread(target=enqueue)
    thread.start()
    thread.join()
    time.sleep(0.2)
    assert not kept
    opened = time.monotonic()
    gate.open()
    clock.settle()
    ended = time.monotonic()
    assert [name for name, _, _ in kept] == ["held", "not held", "of another thread"]
    (_, begin, end), (_, begin_of_next, end_of_next), _ = kept
    assert started - ROUNDING <= begin and end <= ended + ROUNDING
    assert end - begin >= 0.2 - ROUNDING and begin_of_next >= opened - ROUNDING
    assert end_of_next - begin_of_next <= ended - opened + ROUNDING
    clock.settle()
    assert len(kept) == 3


def test_a_clock_of_a_stream(run_ranks: Launcher) -> None:
    run_ranks(1, time_blocks, init=False)


# --- Modes ----------------------------------------------------------------------------------------

CYCLES_OF_SECOND = 1e9


def occupy_stream(gates: list[Gate], cycles: int) -> None:
    """What torch's kernel does: keeps the current stream busy, and not the host."""
    reached = torch.cuda.Event()
    reached.record()
    gate = Gate()
    gates.append(gate)  # which the stream may look at after it was opened

    def end() -> None:
        reached.synchronize()
        time.sleep(cycles / CYCLES_OF_SECOND)
        gate.open()

    threading.Thread(target=end).start()


def carry_out(rank: int, world_size: int, mode: Mode) -> tuple[list[Record], str]:
    mode.check(world_size)
    with pytest.MonkeyPatch.context() as patch, computing_on_host():
        patch.setattr(torch.cuda, "_sleep", partial(occupy_stream, []))
        records = mode.measure(Ranks(rank, world_size, None))
        return records, mode.table(records)


def run_mode(run_ranks: Launcher, mode: Mode) -> tuple[list[Record], str]:
    limit = {"limit": 600.0, "checks_footprint": False}
    found: tuple[list[Record], str] = run_ranks(2, carry_out, mode, backend="gloo", **limit)[0]
    return found


def test_priority(run_ranks: Launcher) -> None:
    mode = PriorityMode(
        ranks=None,
        backends=("freescale",),
        device="cuda",
        urgent=4096,
        bulk=32 << 20,
        rate=200.0,
        trials=2,
    )
    (found,), table = run_mode(run_ranks, mode)
    assert found["backend"] == "freescale" and "freescale" in table
    assert found["urgent_idle_us"] > 0 and found["bulk_alone_ms"] > 0
    assert found["calls_beside"] + found["calls_missed"] >= 2
    assert (found["ratio"] is None) == (found["calls_beside"] == 0)


OVERLAP = OverlapMode(
    ranks=None,
    backends=("freescale",),
    device="cuda",
    shared=(0.5,),
    rate=None,
    ids=32,
    dim=4,
    compute=1.2,
    rounds=1,
)


@pytest.mark.timeout(600)
def test_overlap(run_ranks: Launcher) -> None:
    records, table = run_mode(run_ranks, OVERLAP)
    assert [record["schedule"] for record in records] == ["blocking", "FIFO", "prioritised"]
    for record in records:
        assert record["rate"] > 0 and record["schedule"] in table
        # For 16 ids of the other rank: 4 bytes, and 16 bytes of a vector and of its gradient.
        computing = OVERLAP.compute * 16 * 36 / record["rate"]
        times = step_times(record)
        assert len(times) == MEASURED_STEPS
        for step in times:
            assert step.computing >= computing - ROUNDING
            assert step.exposed > 0 and step.rest > 0
    urgent = [line["urgent_ms"] for line in OVERLAP.lines(records)]
    assert urgent[:2] == [None, None] and urgent[2] > 0


def refuse_rate(rank: int, world_size: int) -> None:
    with pytest.raises(ValueError, match="--rate 10: links are emulated for CPU tensors"):
        replace(OVERLAP, rate=10).check(None)
    with pytest.raises(ValueError, match=r"cannot measure nccl: .* a device for each rank"):
        replace(OVERLAP, backends=("nccl",), ranks=torch.cuda.device_count() + 1).check(None)


def test_what_cannot_be_measured_on_devices(run_ranks: Launcher) -> None:
    run_ranks(1, refuse_rate, init=False)
