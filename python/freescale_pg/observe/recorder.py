"""Records a training run into a directory, of which ``freescale report`` makes a page."""

import os
import platform
import secrets
import socket
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from freescale_pg._extension import _C
from freescale_pg._group import member_group
from freescale_pg.balance.cost import Linear, Quadratic
from freescale_pg.balance.imbalance import EpochBalance
from freescale_pg.balance.online import OnlineBalancer
from freescale_pg.balance.sampler import BalancedBatchSampler
from freescale_pg.balance.workload import Workload
from freescale_pg.observe.clocks import (
    ClockDrift,
    ClockOffset,
    measure_drifts,
    measure_offsets,
)
from freescale_pg.observe.endings import ends_well_everywhere
from freescale_pg.observe.meter import BubbleMeter
from freescale_pg.observe.report import step_fields
from freescale_pg.observe.run_files import (
    FORMAT,
    KIND,
    summaries,
    summary_path,
    trace_path,
    write_json,
)
from freescale_pg.observe.tracing import finish, trace_document
from freescale_pg.statistics import Stats, stats

T = TypeVar("T")

# Of 80 bytes in memory: 4 MB. In a file of the example each takes 24: 1.2 MB.
_EVENTS = 50_000
# Of the number of a run, for a tag of 28 bits that no message of the job is likely to have.
_TAG_DIGITS = 7


@dataclass(frozen=True, slots=True)
class _Agreed:
    """What the ranks agree on when a recording begins.

    Attributes:
        run: Number of the run, in hexadecimal digits: tells files of two runs apart.
        zero: Of all times of the run, by the first rank's monotonic clock; ns.
        clocks: What each rank's clock is ahead of that then.
    """

    run: str
    zero: int
    clocks: list[ClockOffset]


@contextmanager
def record_run(
    directory: str | PathLike[str],
    *,
    sampler: BalancedBatchSampler | None = None,
    balancer: OnlineBalancer | None = None,
    keep: int = 10_000,
    capacity: int = _EVENTS,
) -> Iterator["RunRecorder"]:
    """Records what ``freescale report`` shows of a training; collective at its begin and its end.

    Each rank writes two files of its own: what it measured, and its trace in Chrome's format. They
    are written when the block ends. One that ends by an error waits for no other rank; one that
    ends well waits until the others have left their blocks, or are lost. A rank that is killed
    leaves what it wrote last: at the begin, or in :meth:`RunRecorder.save`.

    Over the default group, whose backend must take CPU tensors: the ranks compare their clocks at
    the begin, and at the end if all blocks have ended well, so that the times of ranks of other
    hosts are right in between, however fast their clocks drift. Over another backend than this one
    there are steps, and nothing that blocks them.

    Args:
        directory: Where to; made if it is not there. Ranks of several hosts may have one each,
            whose files are put together afterwards.
        sampler: Whose imbalance is recorded, and the lengths and costs that it deals out.
        balancer: Whose imbalance is recorded, and what it has moved.
        keep: How many steps are remembered, the last ones.
        capacity: How many events of the trace are, the last ones; of 80 bytes.

    Yields:
        What the steps are given to.

    Raises:
        FileExistsError: On all ranks: the directory holds a run already.
        OSError: On all ranks: the directory cannot be made, or a file of one cannot be written.
        ValueError: There is no process group, this rank is not in it, or a number is not positive.
        RuntimeError: A rank is lost.

    Example:
        >>> with fs.record_run("run", sampler=sampler) as recorder:
        ...     for batch in recorder.loader(loader):
        ...         with recorder.step():
        ...             train(batch)
    """
    if capacity <= 0:
        raise ValueError(f"capacity must be positive, got {capacity}")
    recorder = RunRecorder(Path(directory), sampler, balancer, keep, capacity)
    try:
        yield recorder
    except BaseException as error:
        try:
            recorder._end("failed", _said(error))
        except OSError as other:
            # What the block raised is what the caller has to hear of.
            warnings.warn(f"the run is not recorded: {other}", stacklevel=3)
        raise
    recorder._end("finished", None)


class RunRecorder:
    """What :func:`record_run` gives to the training; not made directly."""

    def __init__(
        self,
        directory: Path,
        sampler: BalancedBatchSampler | None,
        balancer: OnlineBalancer | None,
        keep: int,
        capacity: int,
    ) -> None:
        group = member_group(None)
        self._directory = directory
        self._sampler = sampler
        self._balancer = balancer
        self._meter = BubbleMeter(keep=keep)
        # Begin, end and thread of each step, and begin and end of each load.
        self._spans: deque[tuple[int, int, int]] = deque(maxlen=keep)
        self._loads: deque[tuple[int, int]] = deque(maxlen=keep)
        self._balance: dict[int, EpochBalance] = {}
        self._rank, self._size = group.rank(), group.size()
        self._agreed = _agree(directory, group)
        self._clock = ClockDrift(self._agreed.clocks[self._rank])
        self._facts = self._about(group)
        self.save()
        self._begin = time.monotonic_ns()
        self._log = _C.TraceLog(capacity)

    def loader(self, batches: Iterable[T]) -> Iterator[T]:
        """Yields the batches. What getting them takes belongs to the step that is open or next."""
        loading = self._meter.loader(batches)
        while True:
            begin = time.monotonic_ns()
            try:
                batch = next(loading)
            except StopIteration:
                self._note_balance()
                return
            self._loads.append((begin, time.monotonic_ns()))
            yield batch

    @contextmanager
    def step(self) -> Iterator[None]:
        """Measures the block of a ``with`` as a step; one that raises does not count.

        Raises:
            RuntimeError: A step has not ended yet.
        """
        begin = time.monotonic_ns()
        with self._meter.step():
            yield
        self._spans.append((begin, time.monotonic_ns(), threading.get_native_id()))

    def steps(self, results: Iterable[T]) -> Iterator[T]:
        """Yields what an iterator yields that takes a step for each item: ``OverlapPipeline``."""
        iterator = iter(results)
        while True:
            try:
                with self.step():
                    result = next(iterator)
            except StopIteration:
                return
            yield result

    def save(self) -> None:
        """Writes what this rank has measured so far, but for the trace; not collective.

        Raises:
            OSError: It cannot be written.
        """
        self._write("running", None, None, stats())

    def _end(self, state: str, error: str | None) -> None:
        """Writes what there is, and the trace."""
        recording = finish(self._log, self._rank, self._begin)
        totals = stats()  # of which the comparison of clocks is no part
        self._compare_again(error is None)
        path = trace_path(self._directory, self._rank)
        write_json(path, trace_document([recording], [self._clock], self._agreed.zero))
        trace = {"file": path.name, "events": len(recording.slices), "dropped": recording.dropped}
        self._write(state, error, trace, totals)

    def _compare_again(self, well: bool) -> None:
        """Finds how the clock has drifted; collective among ranks whose blocks have ended well."""
        group = dist.group.WORLD
        tag = int(self._agreed.run[:_TAG_DIGITS], 16)
        if group is None or not ends_well_everywhere(group, well, tag=tag):
            return
        try:
            held = [measure_drifts(group, self._agreed.clocks)]
            dist.broadcast_object_list(held, group=group, group_src=0)
        except RuntimeError:
            return  # A rank is lost: what the begin has shown has to do.
        self._clock = held[0][self._rank]

    def _write(
        self, state: str, error: str | None, trace: dict[str, Any] | None, totals: Stats
    ) -> None:
        self._note_balance()
        held = {
            **self._facts,
            "clock": self._clock_row(),
            "state": state,
            "error": error,
            "written_unix": time.time(),
            "steps": self._step_rows(),
            "loads": [[self._since_zero(at) for at in load] for load in self._loads],
            "operations": [asdict(op) for op in totals.ops],
            "traffic": [asdict(link) for link in totals.links],
            "balance": self._balance_rows(),
            "online": None if self._balancer is None else _online(self._balancer),
            "trace": trace,
        }
        write_json(summary_path(self._directory, self._rank), held)

    def _clock_row(self) -> dict[str, Any]:
        return {
            "offset_ns": self._clock.first.offset_ns,
            "error_ns": self._clock.error_ns,
            "drift_ppm": None if self._clock.last is None else 1e6 * self._clock.rate,
        }

    def _since_zero(self, at: int) -> int:
        """From this rank's clock to the time that all ranks share; ns."""
        return self._clock.first_ranks_time(at) - self._agreed.zero

    def _about(self, group: dist.ProcessGroup) -> dict[str, Any]:
        """What does not change while the run lasts."""
        return {
            "kind": KIND,
            "format": FORMAT,
            "run": self._agreed.run,
            "rank": self._rank,
            "ranks": self._size,
            "host": socket.gethostname(),
            "process": os.getpid(),
            "began_unix": time.time(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "backend": dist.get_backend(group),
            "links": _links(group),
            "workload": None if self._sampler is None else _workload(self._sampler.workload()),
        }

    def _step_rows(self) -> list[dict[str, Any]]:
        # A step that has ended is in both.
        times = self._meter.own_steps()
        return [
            {
                **step_fields(each),
                "begin_ns": self._since_zero(begin),
                "end_ns": self._since_zero(end),
                "thread": thread,
            }
            for each, (begin, end, thread) in zip(times, self._spans, strict=True)
        ]

    def _note_balance(self) -> None:
        if self._sampler is None:
            return
        epoch = self._sampler.stats()
        if epoch.steps:
            self._balance[epoch.epoch] = epoch

    def _balance_rows(self) -> list[dict[str, Any]]:
        """The epochs in order, of which the last one has its batches."""
        rows = [
            {**asdict(epoch), "batches": epoch.batches.tolist() if place == 0 else []}
            for place, epoch in enumerate(reversed(self._balance.values()))
        ]
        return rows[::-1]


def _agree(directory: Path, group: dist.ProcessGroup) -> _Agreed:
    """Finds on all ranks whether the directory will do, and what their clocks show; collective."""
    problems: list[tuple[bool, str] | None] = [None] * group.size()
    dist.all_gather_object(problems, _problem(directory, group.rank()), group=group)
    found = [(rank, each) for rank, each in enumerate(problems) if each is not None]
    if found:
        rank, (is_there, text) = found[0]
        raise (FileExistsError if is_there else OSError)(f"rank {rank}: {text}")
    clocks = measure_offsets(group)
    held = [_Agreed(secrets.token_hex(8), time.monotonic_ns(), clocks)]
    dist.broadcast_object_list(held, group=group, group_src=0)
    return held[0]


def _problem(directory: Path, rank: int) -> tuple[bool, str] | None:
    """Why a run cannot be recorded in a directory, and whether one is there; None: it can."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        there = [path for _, path in summaries(directory)]
        (directory / f".rank{rank}.try").touch()
        (directory / f".rank{rank}.try").unlink()
    except OSError as error:
        return False, str(error)
    if there:
        return True, f"{there[0]} is of another run; remove that one, or name another directory"
    return None


def _links(group: dist.ProcessGroup) -> list[dict[str, Any]]:
    """How this rank reaches each other one; nothing where another backend has the CPU tensors."""
    backend = group._get_backend(torch.device("cpu"))
    if not isinstance(backend, _C.Backend):
        return []
    return [
        {"peer": peer, "transport": transport, "reason": reason}
        for peer, transport, reason in backend.links()
    ]


def _online(balancer: OnlineBalancer) -> dict[str, Any]:
    return {**asdict(balancer.stats()), "recent": balancer.recent().tolist()}


def _workload(workload: Workload) -> dict[str, Any] | None:
    """A sampler's workload as JSON; None: its costs are those of no formula that others know."""
    model = workload.cost_model
    if isinstance(model, Linear):
        model = Quadratic(1, 0)
    if not isinstance(model, Quadratic):
        return None
    return {
        "samples_per_rank": workload.samples_per_rank,
        "lengths": workload.lengths.tolist(),
        "token_cost": model.a,
        "pair_cost": model.b,
    }


def _said(error: BaseException) -> str:
    """The first line: what follows it is for logs."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
