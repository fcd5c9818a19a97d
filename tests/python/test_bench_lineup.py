"""Contestants that are wrong, fail or hang: they are named, and the others go on."""

import time
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist

from freescale_pg.bench.barrier import GroupBarrier, make_barrier
from freescale_pg.bench.cells import Cell
from freescale_pg.bench.collectives import Lineup, plan_cells
from freescale_pg.bench.contestants import Call, Contestant, TorchBackend
from freescale_pg.bench.exchange import Exchange, group_of_priority
from freescale_pg.bench.memory import check_memory
from freescale_pg.bench.priority import Schedule, calibrate, latencies, make_contest
from freescale_pg.bench.ranks import Ranks
from freescale_pg.bench.results import CellResult
from freescale_pg.bench.roster import (
    AbsentContestantError,
    Place,
    absent,
    check_names,
    choose_among,
    choose_contestants,
)
from freescale_pg.bench.shared_mapping import NotSharedError, shared_mapping
from freescale_pg.bench.workload import Workload
from harness.launch import Launcher

CPU = torch.device("cpu")
SECONDS = 0.01
OPS = ("all_gather_into_tensor", "all_reduce")


class Damaged(Contestant):
    """Gloo, and then a wrong last element on rank 1."""

    name = "damaged"

    def __init__(self) -> None:
        self._true = TorchBackend("gloo")

    def prepare(self, workload: Workload) -> Call:
        call = self._true.prepare(workload)

        def run() -> None:
            call()
            if workload.rank == 1:
                workload.output[-1] += 1

        return run


class Raising(Contestant):
    """Fails on some ranks; the others return at once, with what they should not have."""

    name = "raising"

    def __init__(self, ranks: tuple[int, ...], when: str) -> None:
        self._ranks, self._when = ranks, when
        self.calls = 0

    def prepare(self, workload: Workload) -> Call:
        if self._when == "prepared" and workload.rank in self._ranks:
            raise KeyError("not prepared")
        return partial(self._run, workload.rank)

    def fills_output(self, op: str) -> bool:
        return False

    def _run(self, rank: int) -> None:
        self.calls += 1
        if rank in self._ranks:
            raise OSError("broken pipe\nand a stack")
        time.sleep(0.2)  # a rank that still waits while another has failed


def fail_to_make() -> Contestant:
    raise RuntimeError("no such device")


def measured(rank: int, world_size: int, make: Callable[[], Contestant]) -> list[CellResult]:
    """Two cells in a row, beside gloo."""
    ranks = Ranks(rank, world_size, None)
    lineup = Lineup(ranks, make_barrier(ranks, yields=True), CPU, ["gloo", "limit"], 4096)
    lineup.enter("other", partial(make))
    return [lineup.measure(Cell(op, 4096, world_size), SECONDS) for op in OPS]


def run(launch: Launcher, make: Callable[[], Contestant]) -> list[CellResult]:
    found = launch(measured, 2, make, backend="gloo", checks_footprint=False)
    first: list[CellResult] = found[0]
    assert [each.failures for each in found[1]] == [each.failures for each in first]
    for result in first:
        assert {"gloo", "limit"} <= result.timings.keys()
        assert not set(result.timings) & set(result.failures)
        assert result.rounds >= 7
    return first


def test_a_wrong_result_is_reported_in_every_cell(launch: Launcher) -> None:
    found = run(launch, Damaged)
    assert [each.failures for each in found] == [{"damaged": "rank 1: wrong result"}] * 2


@pytest.mark.parametrize("failing", [(0, 1), (1,)])
def test_a_call_that_fails_is_reported(launch: Launcher, failing: tuple[int, ...]) -> None:
    found = run(launch, partial(Raising, failing, "called"))
    message = f"rank {failing[0]}: OSError: broken pipe"
    assert [each.failures for each in found] == [{"raising": message}] * 2


def calls_of(rank: int, world_size: int, failing: tuple[int, ...]) -> int:
    ranks = Ranks(rank, world_size, None)
    lineup = Lineup(ranks, make_barrier(ranks, yields=True), CPU, ["gloo"], 4096)
    raising = Raising(failing, "called")
    lineup.enter("raising", partial(lambda: raising))
    for op in OPS:
        lineup.measure(Cell(op, 4096, world_size), SECONDS)
    return raising.calls


def test_only_who_is_out_of_step_is_not_called_again(launch: Launcher) -> None:
    """One that does not know an operation may know the next."""
    alike, apart = (
        launch(calls_of, 2, failing, backend="gloo", checks_footprint=False)
        for failing in ((0, 1), (0,))
    )
    assert alike == [2, 2]
    assert apart == [1, 1]


def test_what_fails_before_its_calls_is_reported(launch: Launcher) -> None:
    prepared = run(launch, partial(Raising, (1,), "prepared"))
    assert prepared[0].failures == {"raising": "rank 1: KeyError: 'not prepared'"}
    made = run(launch, fail_to_make)
    assert [each.failures for each in made] == [
        {"other": "rank 0: RuntimeError: no such device"}
    ] * 2


# --- Who can take part ----------------------------------------------------------------------------


def test_an_absent_contestant_asked_for_by_name_is_an_error() -> None:
    without_mpi = Ranks(rank=0, world_size=1, mpi=None)
    assert "mpi" not in choose_contestants(None, without_mpi)
    assert choose_contestants(["gloo"], without_mpi) == ["gloo"]
    with pytest.raises(AbsentContestantError, match="cannot measure mpi: not started by mpirun"):
        choose_contestants(["mpi"], without_mpi)


def test_names_are_those_of_torch_and_a_few_more() -> None:
    check_names(None)
    check_names(["freescale", "gloo", "nccl", "ucc"])
    check_names(["mpi", "limit"], ["mpi", "limit"])
    with pytest.raises(ValueError, match=r"'glo' is not one of freescale, .*gloo.*, limit"):
        check_names(["gloo", "glo"], ["limit"])


def test_a_place_says_who_cannot_take_part() -> None:
    hosts = absent(["gloo", "floor", "limit"], Place(shares_memory=False))
    assert hosts == dict.fromkeys(["floor", "limit"], "the ranks share no memory")
    cuda = absent(["gloo", "floor", "limit", "mpi"], Place("cuda", has_mpi=True))
    assert list(cuda) == ["floor", "mpi"]
    assert list(absent(["mpi"], Place(has_mpi=True))) == []


def test_nccl_needs_devices_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_backend_available", lambda name: True)
    assert "CUDA tensors only" in absent(["nccl"], Place())["nccl"]
    assert "a device for each rank" in absent(["nccl"], Place("cuda", shares_device=True))["nccl"]
    assert absent(["nccl"], Place("cuda")) == {}


def test_names_are_taken_once_and_in_order() -> None:
    assert choose_among(["limit", "gloo", "limit"], (), Place()) == ["limit", "gloo"]


# --- Memory, barriers, exchanges ------------------------------------------------------------------


def plan(rank: int, world_size: int, sizes: list[int]) -> list[int]:
    ranks = Ranks(rank, world_size, None)
    return [cell.size for cell in plan_cells(["all_reduce"], sizes, ranks, CPU)]


def test_only_cells_that_fit_into_memory_are_planned(launch: Launcher) -> None:
    assert launch(plan, 2, [64, 1 << 50], backend="gloo", checks_footprint=False) == [[64]] * 2


def refuse(rank: int, world_size: int) -> None:
    ranks = Ranks(rank, world_size, None)
    with pytest.raises(
        ValueError, match="nothing fits into memory; all_reduce 1048576 GiB: a rank"
    ):
        plan_cells(["all_reduce"], [1 << 50], ranks, CPU)
    check_memory(1, ranks)
    with pytest.raises(ValueError, match=r"a rank needs 1125899\.9 GB of memory and may take"):
        check_memory(1 << 50, ranks)


def test_too_little_memory_is_an_error_on_every_rank(launch: Launcher) -> None:
    launch(refuse, 2, backend="gloo", checks_footprint=False)


def map_from_elsewhere(rank: int, world_size: int) -> None:
    """Rank 1 cannot open the file, as on another host."""
    ranks = Ranks(rank, world_size, None)
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            patch.setattr("pathlib.Path.readlink", lambda path: path)
        with pytest.raises(NotSharedError, match="rank 1 shares no memory with rank 0"):
            shared_mapping(ranks, 64)
        barrier = make_barrier(ranks, yields=True)
    assert isinstance(barrier, GroupBarrier)
    barrier.wait()
    mapping = shared_mapping(ranks, 64)
    mapping[rank] = rank + 1
    dist.barrier()
    assert bytes(mapping[:2]) == b"\x01\x02"


def test_ranks_that_share_no_memory_are_noticed(launch: Launcher) -> None:
    launch(map_from_elsewhere, 2, backend="gloo")


def exchange(rank: int, world_size: int) -> None:
    ranks = Ranks(rank, world_size, None)
    made = Exchange(64, ranks, group_of_priority("gloo", "URGENT"))
    assert not made.is_correct()
    made.run()
    assert made.is_correct()
    made._output[-1] += 1
    assert not made.is_correct()
    contest = make_contest("gloo", 64, 64, ranks)
    contest.bulk.is_correct = lambda: False  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="gloo: wrong result of the bulk exchange"):
        calibrate(contest, 0.001)


def test_a_wrong_exchange_is_noticed(launch: Launcher) -> None:
    launch(exchange, 2, backend="gloo", checks_footprint=False)


def spans(rank: int, world_size: int) -> list[list[float]]:
    """Rank 0 is in its call for 3 s, rank 1 for 1.5 s of them and of the half second after."""
    begin, end = [(10.0, 13.0), (12.0, 13.5)][rank]
    notes = torch.tensor([[begin, end, 0.0]], dtype=torch.float64)
    return [latencies(notes, one_clock)[0] for one_clock in (True, False)]


def test_latencies_need_one_clock_or_do_without(launch: Launcher) -> None:
    assert launch(spans, 2, backend="gloo") == [[[1.5], [3.0]]] * 2
    assert Schedule(GroupBarrier(), 0.1).has_one_clock is False
