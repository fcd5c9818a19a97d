"""``freescale bench --device cuda`` on the stand-in: all but the speed of a device."""

import threading

import torch

from freescale_pg.bench.cells import OPS, REDUCTIONS
from freescale_pg.bench.collectives import CollectivesMode
from freescale_pg.bench.contestants import synchronized
from freescale_pg.bench.ranks import Ranks
from freescale_pg.bench.results import CellResult
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
