"""``freescale bench collectives``: every operation, size and world size, call by call in one run.

``definitions`` says what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import ClassVar

import torch

from freescale_pg.bench.attempt import Failure, WrongResultError, attempt
from freescale_pg.bench.barrier import Barrier, GroupBarrier, make_barrier
from freescale_pg.bench.cell_report import report
from freescale_pg.bench.cells import Cell
from freescale_pg.bench.contestants import Call, Contestant, synchronized
from freescale_pg.bench.devices import check_device, own_device, shares_device
from freescale_pg.bench.interleave import choose_rounds, interleave
from freescale_pg.bench.launch import find_mpirun, run_ranks
from freescale_pg.bench.memory import memory_of_a_rank
from freescale_pg.bench.mode import Mode, Record, check_ranks, measured_by, say
from freescale_pg.bench.ranks import Ranks
from freescale_pg.bench.results import CellResult
from freescale_pg.bench.roster import (
    CONTESTANTS,
    CUDA_CONTESTANTS,
    OTHERS,
    Place,
    check_names,
    choose_among,
    make_contestant,
)
from freescale_pg.bench.table import microseconds_text, size_text
from freescale_pg.bench.workload import Workload

_DEFAULT_RANKS = (2,)


@dataclass(frozen=True)
class CollectivesMode(Mode):
    """What is measured.

    Attributes:
        ops: Some of ``cells.OPS``.
        sizes: Bytes of a rank's input.
        ranks: World sizes, one run for each; None: that of the job, else 2.
        backends: Contestants; None: all that can take part.
        device: Type of the tensors' device, "cpu" or "cuda".
        seconds: For each cell.
    """

    name: ClassVar[str] = "collectives"

    ops: tuple[str, ...]
    sizes: tuple[int, ...]
    ranks: tuple[int, ...] | None
    backends: tuple[str, ...] | None
    device: str
    seconds: float

    def check(self, world_size: int | None) -> None:
        """Refuses a device that is not here, and other world sizes than the job's."""
        check_names(self.backends, OTHERS)
        check_device(self.device)
        check_ranks(self.ranks, world_size)

    def collect(self) -> list[Record]:
        """Starts one run for each world size."""
        mpirun = find_mpirun() if self._wants_mpi() else None
        records: list[Record] = []
        for world_size in self.ranks or _DEFAULT_RANKS:
            self._choose(self._place(world_size, mpirun is not None), speaks=False)
            records += measured_by(self, partial(run_ranks, ranks=world_size, mpirun=mpirun))
        return records

    def measure(self, ranks: Ranks) -> list[Record]:
        """Measures every cell; rank 0 tells of each."""
        barrier = make_barrier(ranks, yields=ranks.oversubscribed)
        shares_memory = not isinstance(barrier, GroupBarrier)
        place = self._place(ranks.local_size, ranks.mpi is not None, shares_memory)
        names = self._choose(place, speaks=ranks.rank == 0)
        device = own_device(self.device, ranks)
        cells = plan_cells(self.ops, self.sizes, ranks, device)
        lineup = Lineup(ranks, barrier, device, names, max(cell.input_bytes for cell in cells))
        results = []
        for cell in cells:
            results.append(lineup.measure(cell, self.seconds))
            if ranks.rank == 0:
                say(_progress(results[-1]))
        return [asdict(result) for result in results]

    def table(self, records: Sequence[Record]) -> str:
        """A table for each world size."""
        return report([CellResult.from_record(record) for record in records])

    def lines(self, records: Sequence[Record]) -> list[Record]:
        """One for each cell and contestant."""
        return [line for record in records for line in CellResult.from_record(record).lines()]

    def failures(self, records: Sequence[Record]) -> list[str]:
        """One for each cell and contestant."""
        return [
            f"{name}, {result.op} {size_text(result.size)}, {result.ranks} ranks: {message}"
            for result in map(CellResult.from_record, records)
            for name, message in result.failures.items()
        ]

    def _wants_mpi(self) -> bool:
        return self.device == "cpu" and (self.backends is None or "mpi" in self.backends)

    def _place(self, local_size: int, has_mpi: bool, shares_memory: bool = True) -> Place:
        shared = shares_device(self.device, local_size)
        return Place(self.device, has_mpi, shares_memory, shared)

    def _choose(self, place: Place, *, speaks: bool) -> list[str]:
        default = CUDA_CONTESTANTS if self.device == "cuda" else CONTESTANTS
        return choose_among(self.backends, default, place, speaks=speaks)


def plan_cells(
    ops: Sequence[str], sizes: Sequence[int], ranks: Ranks, device: torch.device
) -> list[Cell]:
    """The cells that fit into memory, the same on every rank; rank 0 says which do not.

    Raises:
        ValueError: None of them does.
    """
    spare = memory_of_a_rank(ranks, device)
    cells = [Cell(op, size, ranks.world_size) for op in ops for size in sizes]
    too_large = [cell for cell in cells if cell.footprint_bytes > spare]
    needs = [
        f"{cell.op} {size_text(cell.size)}: a rank needs {cell.footprint_bytes / 1e9:.1f} GB"
        f" of {spare / 1e9:.1f} GB"
        for cell in too_large
    ]
    if len(too_large) == len(cells):
        raise ValueError(f"nothing fits into memory; {needs[0]}")
    if ranks.rank == 0:
        for need in needs:
            say(f"without {need}")
    return [cell for cell in cells if cell not in too_large]


class Lineup:
    """The contestants of one run, those that failed for good left out.

    Args:
        ranks: The run.
        barrier: Where its ranks meet.
        device: Of the tensors.
        names: The contestants, in the order of tables.
        largest_input: Bytes of the largest input that a rank will have.
    """

    def __init__(
        self,
        ranks: Ranks,
        barrier: Barrier,
        device: torch.device,
        names: Sequence[str],
        largest_input: int,
    ) -> None:
        self._ranks, self._barrier, self._device = ranks, barrier, device
        self._contestants: list[Contestant] = []
        self._out: dict[str, str] = {}
        for name in names:
            made = partial(make_contestant, name, largest_input, ranks, device.type)
            self.enter(name, made)

    def enter(self, name: str, make: partial[Contestant]) -> None:
        """Adds a contestant, unless it cannot be made. A collective call."""
        made: list[Contestant] = []
        failure = attempt(lambda: made.append(make()))
        if failure is None:
            self._contestants += made
        else:
            self._out[name] = failure.message

    def measure(self, cell: Cell, seconds: float) -> CellResult:
        """Checks every contestant's result, then times them together. A collective call."""
        workload = Workload(cell, self._ranks.rank, self._device)
        failures = dict(self._out)
        calls: dict[str, Call] = {}
        for contestant in self._contestants:
            failure = attempt(partial(self._prepare, contestant, workload, calls))
            self._note(contestant, failure, failures)
        for contestant in [each for each in self._contestants if each.name not in failures]:
            failure = attempt(partial(self._check, contestant, workload, calls[contestant.name]))
            self._note(contestant, failure, failures)
        self._contestants = [each for each in self._contestants if each.name not in self._out]
        fit = {name: call for name, call in calls.items() if name not in failures}
        if not fit:
            return CellResult.of(cell, {}, failures)
        workload.settle()
        rounds = choose_rounds(fit, self._barrier, seconds)
        samples = interleave(fit, self._barrier, rounds)
        return CellResult.of(cell, {name: samples[name] for name in fit}, failures)

    def _prepare(self, contestant: Contestant, workload: Workload, calls: dict[str, Call]) -> None:
        calls[contestant.name] = synchronized(contestant.prepare(workload), self._device)

    def _check(self, contestant: Contestant, workload: Workload, call: Call) -> None:
        workload.poison()
        self._barrier.wait()
        call()
        if contestant.fills_output(workload.cell.op) and not workload.is_correct():
            raise WrongResultError("wrong result")

    def _note(
        self, contestant: Contestant, failure: Failure | None, failures: dict[str, str]
    ) -> None:
        if failure is None:
            return
        failures[contestant.name] = failure.message
        if failure.is_out_of_step:
            self._out[contestant.name] = failure.message


def _progress(result: CellResult) -> str:
    medians = [
        f"{name} {microseconds_text(timing.median_us)}" for name, timing in result.timings.items()
    ]
    medians += [f"{name} FAILED" for name in result.failures]
    return f"{result.ranks} ranks, {result.op} {size_text(result.size)}: {', '.join(medians)} µs"
