"""What is timed against each other: torch backends, an MPI, and bounds.

``prepare`` does everything that a program would do once (groups, views, counts); the call it
returns is what is timed.
"""

from __future__ import annotations

import ctypes
import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist

from freescale_pg.bench.cells import ELEMENT_BYTES, REDUCTIONS
from freescale_pg.bench.workload import Workload

Call = Callable[[], object]

# Of a call whose other ranks have failed. Below the control group's, in which they wait meanwhile.
_CALL_TIMEOUT = timedelta(minutes=2)

# torch 2.13 renamed both; the old names warn on every call there, the new ones are not in 2.11.
_ALL_GATHER = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


class Contestant(ABC):
    """A way to carry out an operation.

    Attributes:
        name: how tables call it.
    """

    name: str

    @abstractmethod
    def prepare(self, workload: Workload) -> Call:
        """Returns the synchronous call that carries out ``workload``.

        All ranks prepare, and then meet, before one of them calls.
        """

    def fills_output(self, op: str) -> bool:
        """Whether the call leaves the promised data in the output of ``op``."""
        del op
        return True


# From here on glibc's memmove uses "rep movsb", which AMD's Zen 3 runs up to nine times slower than
# vector moves when the target lies 4 to 28 bytes further into its page than the source, as pieces
# of a ragged cut do (128 KiB: 45 µs against 5). ``Tensor.copy_`` uses vector moves and is as fast
# as memmove elsewhere. Below, memmove spares 0.5 µs of torch's dispatch.
_REP_MOVSB_BYTES = 2048


class TorchBackend(Contestant):
    """A torch.distributed backend, called as users call it from Python."""

    def __init__(self, backend: str) -> None:
        """Makes a group of all ranks on ``backend``. A collective call."""
        self.name = backend
        self._group = dist.new_group(backend=backend, timeout=_CALL_TIMEOUT)

    def prepare(self, workload: Workload) -> Call:
        """Binds ``torch.distributed``'s function to the tensors."""
        layout, group = workload.layout, self._group
        tensors = (workload.output, workload.input)
        match workload.cell.op:
            case "all_to_all_single":
                return partial(dist.all_to_all_single, *tensors, group=group)
            case "all_to_all_single_ragged":
                splits = (list(layout.output_splits), list(layout.input_splits))
                return partial(dist.all_to_all_single, *tensors, *splits, group=group)
            case "all_gather_into_tensor":
                return partial(_ALL_GATHER, *tensors, group=group)
            case "all_reduce":
                return partial(dist.all_reduce, workload.output, group=group)
            case "reduce_scatter_tensor":
                return partial(_REDUCE_SCATTER, *tensors, group=group)
            case "broadcast":
                return partial(dist.broadcast, workload.output, src=0, group=group)
        raise ValueError(f"unknown operation {workload.cell.op!r}")


class Mpi(Contestant):
    """Open MPI through mpi4py's buffer interface, which adds about 1 µs to the C call."""

    name = "mpi"

    def __init__(self, communicator: Any) -> None:
        self._communicator = communicator

    def prepare(self, workload: Workload) -> Call:
        """Binds the communicator's method to the tensors' memory."""
        from mpi4py import MPI

        layout, comm = workload.layout, self._communicator
        sent, received = _memory(workload.input), _memory(workload.output)
        match workload.cell.op:
            case "all_to_all_single":
                return partial(comm.Alltoall, [sent, MPI.FLOAT], [received, MPI.FLOAT])
            case "all_to_all_single_ragged":
                outgoing = [sent, _counts_and_starts(layout.input_splits), MPI.FLOAT]
                incoming = [received, _counts_and_starts(layout.output_splits), MPI.FLOAT]
                return partial(comm.Alltoallv, outgoing, incoming)
            case "all_gather_into_tensor":
                return partial(comm.Allgather, [sent, MPI.FLOAT], [received, MPI.FLOAT])
            case "all_reduce":
                return partial(comm.Allreduce, MPI.IN_PLACE, [received, MPI.FLOAT], MPI.SUM)
            case "reduce_scatter_tensor":
                buffers = ([sent, MPI.FLOAT], [received, MPI.FLOAT])
                return partial(comm.Reduce_scatter_block, *buffers, MPI.SUM)
            case "broadcast":
                return partial(comm.Bcast, [received, MPI.FLOAT], 0)
        raise ValueError(f"unknown operation {workload.cell.op!r}")


def _memory(tensor: torch.Tensor) -> Any:
    # What Python calls a buffer, without numpy. The workload keeps the tensor alive.
    return (ctypes.c_float * tensor.numel()).from_address(tensor.data_ptr())


def _counts_and_starts(counts: Sequence[int]) -> tuple[list[int], list[int]]:
    # Starts are spelled out: mpi4py would read two bare counts as a count and a start.
    return list(counts), [0, *accumulate(counts[:-1])]


class Limit(Contestant):
    """The limit: each rank copies what it must receive from memory it shares with the source.

    One copy a part, the rank's own part included, all ranks at once, no synchronisation: no
    transport whose users bring their own tensors can do less. Of a reduction it copies as many
    bytes as the output has, from one other rank, and adds nothing up.
    """

    name = "limit"

    def __init__(self, mapping: mmap.mmap) -> None:
        """Keeps ``mapping``: shared by all ranks, as large as their largest inputs together."""
        self._elements = torch.frombuffer(mapping, dtype=torch.float32)

    def prepare(self, workload: Workload) -> Call:
        """Puts this rank's input into its block and lists the copies out of the others' blocks."""
        count, world_size = workload.layout.input_count, workload.cell.world_size
        blocks = self._elements[: world_size * count].view(world_size, count)
        blocks[workload.rank].copy_(workload.input)
        following = (workload.rank + 1) % world_size
        copies, offset = [], 0
        for part in workload.layout.parts:
            source = following if len(part.sources) > 1 else part.sources[0]
            target = workload.output[offset : offset + part.count]
            copies.append(_copy(target, blocks[source, part.start : part.start + part.count]))
            offset += part.count
        return partial(_call_all, copies)

    def fills_output(self, op: str) -> bool:
        """All but reductions: it copies and does not add up."""
        return op not in REDUCTIONS


class Floor(Contestant):
    """What a torch backend called from Python cannot go below: dispatch, and then the limit.

    torch's way from Python to a backend takes 4 µs in a loop of nothing else, and ten times that
    when copies of a mebibyte have swept its code and data out of the caches. It is called here for
    one element, on torch's own fake backend, whose all-reduce does nothing.
    """

    name = "floor"

    def __init__(self, limit: Limit) -> None:
        """Makes a group of all ranks on torch's fake backend. A collective call."""
        # Registers the backend.
        import torch.testing._internal.distributed.fake_pg

        self._limit = limit
        self._group = dist.new_group(backend="fake")
        self._element = torch.zeros(1)

    def prepare(self, workload: Workload) -> Call:
        """Binds a call that does nothing and the limit's copies."""
        dispatch = partial(dist.all_reduce, self._element, group=self._group)
        return partial(_call_all, [dispatch, self._limit.prepare(workload)])

    def fills_output(self, op: str) -> bool:
        """As the limit."""
        return self._limit.fills_output(op)


class DeviceLimit(Contestant):
    """The limit on a device: one copy of as many bytes as this rank receives, on the device itself.

    Its source lies on the same device, so it is no exchange, and no data are the promised ones.
    """

    name = "limit"

    def prepare(self, workload: Workload) -> Call:
        """Makes the source, of zeros: sums in place of what it leaves must not overflow."""
        received = workload.layout.received_count
        if received == 0:
            return _do_nothing
        return partial(workload.output.copy_, torch.zeros(received).to(workload.output.device))

    def fills_output(self, op: str) -> bool:
        """Never."""
        del op
        return False


def synchronized(call: Call, device: torch.device) -> Call:
    """Returns the call for tensors of a device, which is over when the device has nothing left."""
    if device.type != "cuda":
        return call

    def call_and_synchronize() -> None:
        call()
        torch.cuda.synchronize(device)

    return call_and_synchronize


def _copy(target: torch.Tensor, source: torch.Tensor) -> Call:
    size = target.numel() * ELEMENT_BYTES
    if size < _REP_MOVSB_BYTES:
        return partial(ctypes.memmove, target.data_ptr(), source.data_ptr(), size)
    return partial(target.copy_, source)


def _do_nothing() -> None:
    pass


def _call_all(calls: Sequence[Call]) -> None:
    for call in calls:
        call()
