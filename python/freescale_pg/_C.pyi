# Generated from the built module by tools/generate_stubs.py (make stubs). Do not edit.
"""
The freescale backend of torch.distributed.
"""

from __future__ import annotations
import collections.abc
import datetime
import numpy
import numpy.typing
import torch._C._distributed_c10d
import torch.distributed.distributed_c10d
import typing

__all__: list[str] = [
    "Backend",
    "BlockedTime",
    "DeviceStepMeter",
    "Event",
    "LinkStatistics",
    "OpStatistics",
    "Options",
    "StepMeter",
    "StepTime",
    "TraceLog",
    "blocked_threads",
    "flight_dump",
    "link_statistics",
    "note_join",
    "permuted_indices",
    "plan_balance",
    "rebalance",
    "reset_statistics",
    "set_thread_priority",
    "statistics",
]

class Options(torch._C._distributed_c10d.Backend.Options):
    """
    Settings of one process group.
    """
    def __copy__(self) -> Options: ...
    def __deepcopy__(self, memo: dict) -> Options: ...
    def __init__(
        self,
        priority: typing.SupportsInt | typing.SupportsIndex = 0,
        timeout: datetime.timedelta = ...,
        aging: datetime.timedelta | None = None,
        reductions: str | None = None,
        eager: bool = True,
    ) -> None: ...
    @property
    def aging(self) -> datetime.timedelta | None:
        """
        How long an operation waits before it climbs one priority level. None: whatever the process has.
        """
    @aging.setter
    def aging(self, arg1: datetime.timedelta | None) -> None: ...
    @property
    def eager(self) -> bool:
        """
        Whether a group's members are connected when it is made, or by the first call that each makes on it.
        """
    @eager.setter
    def eager(self, arg0: bool) -> None: ...
    @property
    def priority(self) -> int:
        """
        Of the group's collectives where the calling thread sets none, -2 to 2.
        """
    @priority.setter
    def priority(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def reductions(self) -> str | None:
        """
        Who combines CUDA tensors, "nccl" or "exchange". None: NCCL where there is one.
        """
    @reductions.setter
    def reductions(self, arg0: str | None) -> None: ...

class Backend(torch._C._distributed_c10d.Backend):
    """
    One rank's end of a process group.
    """
    def __init__(
        self,
        store: torch.distributed.distributed_c10d.Store,
        rank: typing.SupportsInt | typing.SupportsIndex,
        size: typing.SupportsInt | typing.SupportsIndex,
        options: Options,
    ) -> None:
        """
        Connects to the other members, now or with the first call; blocks until all are there or the options' timeout has passed.
        """
    def _set_default_timeout(self, timeout: datetime.timedelta) -> None:
        """
        Sets the timeout of later operations.
        """
    def comm_split_count(self) -> int:
        """
        How many groups were split off this one.
        """
    def get_error(self) -> torch._C._distributed_c10d.ErrorType:
        """
        What went wrong first on this group, if anything.
        """
    def links(self) -> list[tuple[int, str, str]]:
        """
        (rank, transport, why) for every member; empty before they are connected.
        """
    def perform_nocolor_split(self, device: typing.Any) -> None:
        """
        Does nothing: ranks outside a split need not take part in it.
        """
    @property
    def options(self) -> Options:
        """
        The group's settings.
        """

class OpStatistics:
    """
    Totals of one operation at one priority.
    """
    @property
    def blocked_seconds(self) -> float: ...
    @property
    def bytes_received(self) -> int: ...
    @property
    def bytes_sent(self) -> int: ...
    @property
    def calls(self) -> int: ...
    @property
    def in_flight_seconds(self) -> float: ...
    @property
    def op(self) -> str: ...
    @property
    def priority(self) -> int: ...

class LinkStatistics:
    """
    What has travelled between this rank and another one.
    """
    @property
    def bytes_received(self) -> int: ...
    @property
    def bytes_sent(self) -> int: ...
    @property
    def peer(self) -> int:
        """
        Of all ranks.
        """

class Event:
    """
    Something that took time; ns of the monotonic clock.
    """
    @property
    def begin(self) -> int: ...
    @property
    def bytes(self) -> int:
        """
        Of a message, or of a call's inputs.
        """
    @property
    def end(self) -> int: ...
    @property
    def failed(self) -> bool: ...
    @property
    def group(self) -> int:
        """
        Its number, the same on all ranks.
        """
    @property
    def joined(self) -> int:
        """
        Of a join: the thread that it awaits.
        """
    @property
    def kind(self) -> str:
        """
        "message_out", "message_in", "call", "wait" or "join".
        """
    @property
    def op(self) -> str: ...
    @property
    def paths(self) -> list[str]:
        """
        That the bytes of a call took.
        """
    @property
    def peer(self) -> int:
        """
        Of a message; of all ranks.
        """
    @property
    def priority(self) -> int: ...
    @property
    def rank(self) -> int:
        """
        The own one, of all ranks.
        """
    @property
    def ready(self) -> int:
        """
        Of a call or wait: when the last rank had come; 0: before this one.
        """
    @property
    def sequence(self) -> int:
        """
        Of a collective in its group; else 0.
        """
    @property
    def thread(self) -> int:
        """
        Of a wait or join, as the system numbers it.
        """

class TraceLog:
    """
    The last messages, calls, waits and joins of this process.
    """
    def __init__(self, capacity: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Begins to keep so many of them.
        """
    def close(self) -> None:
        """
        Keeps no more.
        """
    def take(self) -> list[Event]:
        """
        Removes and returns them, by their ends.
        """
    @property
    def dropped(self) -> int:
        """
        How many of them were too many to be kept.
        """

class BlockedTime:
    """
    For how long waits for one operation at one priority took a thread.
    """
    @property
    def communication(self) -> int:
        """
        From then on; ns.
        """
    @property
    def op(self) -> str: ...
    @property
    def priority(self) -> int: ...
    @property
    def stragglers(self) -> int:
        """
        Until all ranks had called; ns.
        """

class StepTime:
    """
    Where the time of a step went; ns.
    """
    @property
    def blocked(self) -> list[BlockedTime]:
        """
        Of that, by operation and priority.
        """
    @property
    def loader(self) -> int:
        """
        Of that, the loader's.
        """
    @property
    def number(self) -> int: ...
    @property
    def total(self) -> int: ...

class StepMeter:
    """
    Measures the steps of a training.
    """
    def __enter__(self) -> None: ...
    def __exit__(self, kind: typing.Any, error: typing.Any, traceback: typing.Any) -> None: ...
    def __init__(self, keep: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Remembers so many steps, the last ones.
        """
    def begin_load(self) -> None:
        """
        A thread waits for the loader.
        """
    def end_load(self, begin: typing.SupportsInt | typing.SupportsIndex, well: bool) -> None:
        """
        It has waited since `begin`; that counts if it got something.
        """
    def times(self) -> list[StepTime]:
        """
        Of the steps that are remembered, oldest first.
        """
    @property
    def dropped(self) -> int:
        """
        How many waits were too many to be kept.
        """

class DeviceStepMeter:
    """
    Measures the steps of a training as a CUDA device takes them.
    """
    def __enter__(self) -> None: ...
    def __exit__(self, kind: typing.Any, error: typing.Any, traceback: typing.Any) -> None: ...
    def __init__(
        self,
        keep: typing.SupportsInt | typing.SupportsIndex,
        device: typing.SupportsInt | typing.SupportsIndex,
    ) -> None:
        """
        Remembers so many steps, the last ones, on the device of that number.
        """
    def begin_load(self) -> None:
        """
        A thread waits for the loader.
        """
    def end_load(self, begin: typing.SupportsInt | typing.SupportsIndex, well: bool) -> None:
        """
        It has waited; that counts if it got something.
        """
    def times(self) -> list[StepTime]:
        """
        Of the steps that are remembered, oldest first; waits until the device has taken them.
        """
    @property
    def dropped(self) -> int:
        """
        How many waits were too many to be kept.
        """

def _set_device_reducer_factory(factory: collections.abc.Callable) -> None:
    """
    Sets what makes the backend that combines a new group's CUDA tensors, of store, rank, size and options; it returns None where the group's exchanges are to do it.
    """

def _set_ucx_candidates(paths: collections.abc.Sequence[str]) -> None:
    """
    Sets where else UCX may be: paths of libucp.so.0.
    """

def blocked_threads() -> int:
    """
    How many threads are in wait() now.
    """

def flight_dump() -> str:
    """
    The recorded calls of this process as JSON (see freescale_pg.debug).
    """

def link_statistics() -> list[LinkStatistics]:
    """
    Totals of this process by the other rank.
    """

def note_join(
    joined: typing.SupportsInt | typing.SupportsIndex,
    begin: typing.SupportsInt | typing.SupportsIndex,
) -> None:
    """
    This thread has waited since then for the end of another: what that one waited for meanwhile, this one has waited for.
    """

def permuted_indices(
    size: typing.SupportsInt | typing.SupportsIndex,
    seed: typing.SupportsInt | typing.SupportsIndex,
    epoch: typing.SupportsInt | typing.SupportsIndex,
    first: typing.SupportsInt | typing.SupportsIndex,
    count: typing.SupportsInt | typing.SupportsIndex,
) -> numpy.typing.NDArray[numpy.int64]:
    """
    Elements first to first + count - 1 of a shuffled order of size elements.
    """

def plan_balance(
    costs: numpy.typing.NDArray[numpy.int64],
    world_size: typing.SupportsInt | typing.SupportsIndex,
    equal_counts: bool,
    tokens: numpy.typing.NDArray[numpy.int64] | None = None,
    most_tokens: typing.SupportsInt | typing.SupportsIndex = 0,
) -> tuple[numpy.typing.NDArray[numpy.int32], int]:
    """
    The rank of each sample of a global batch, and the least load that the heaviest rank can have.
    """

def rebalance(
    costs: numpy.typing.NDArray[numpy.int64],
    world_size: typing.SupportsInt | typing.SupportsIndex,
    ranks: numpy.typing.NDArray[numpy.int32],
    target: typing.SupportsInt | typing.SupportsIndex,
    equal_counts: bool,
    tokens: numpy.typing.NDArray[numpy.int64] | None = None,
    most_tokens: typing.SupportsInt | typing.SupportsIndex = 0,
) -> numpy.typing.NDArray[numpy.int32]:
    """
    The new rank of each sample after moving few of them, so that no rank bears more than target.
    """

def reset_statistics() -> None:
    """
    Sets all totals to zero.
    """

def set_thread_priority(priority: typing.SupportsInt | typing.SupportsIndex | None) -> int | None:
    """
    Sets the priority of this thread's calls, or with None takes it back. Returns the previous one.
    """

def statistics() -> list[OpStatistics]:
    """
    Totals of this process by operation and priority.
    """
