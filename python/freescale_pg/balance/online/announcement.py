"""What ranks tell each other of their batches before any sample moves."""

import hashlib
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from freescale_pg._priority import Priority
from freescale_pg.operators import all_gather_into_tensor

Integers = npt.NDArray[np.int64]

# State, samples, digest of the structure, digest of the settings.
_HEADER = 4


def digest(value: object) -> int:
    """Returns 63 bits of a value's ``repr``, never 0."""
    hashed = hashlib.blake2b(repr(value).encode(), digest_size=8).digest()
    return (int.from_bytes(hashed, "little") >> 1) or 1


class State(IntEnum):
    """What a rank comes with."""

    BATCH = 0
    OVER = 1  # its stream has ended
    PROBLEM = 2  # a batch that it cannot balance


@dataclass(frozen=True)
class Announcement:
    """What one rank says.

    Attributes:
        state: What it comes with.
        structure: Digest of its batch's structure, or of one that it knows; 0: it knows none.
        settings: Digest of what all ranks must have set alike.
        costs: Of its samples; float64, shape ``[n]``.
        sizes: Bytes of its samples; int64, shape ``[n]``.
    """

    state: State
    structure: int
    settings: int
    costs: npt.NDArray[np.float64]
    sizes: Integers


@dataclass(frozen=True)
class Announcements:
    """What all ranks say, by rank.

    Attributes:
        states: What they come with; shape ``[world_size]``, as are the next three.
        counts: How many samples.
        structures: Digests, 0 where none is known.
        settings: Digests.
        costs: Of each rank's samples, float64.
        sizes: Of each rank's samples, in bytes, int64.
    """

    states: Integers
    counts: Integers
    structures: Integers
    settings: Integers
    costs: list[npt.NDArray[np.float64]]
    sizes: list[Integers]

    def of_state(self, state: State) -> Integers:
        """Returns the ranks that come with ``state``."""
        return np.flatnonzero(self.states == state)


class Gathering:
    """One gather in flight.

    A gather needs a size that all ranks know. It has room for ``capacity`` samples of each rank;
    where one has more, all see that in its header and gather once more, with room enough.

    Args:
        own: What this rank says.
        capacity: The same on all ranks.
        group: The ranks.
    """

    def __init__(self, own: Announcement, capacity: int, group: dist.ProcessGroup) -> None:
        self._own = own
        self._group = group
        self._start(capacity)

    @property
    def capacity(self) -> int:
        """Room that was needed; after :meth:`finish`, the same on all ranks."""
        return self._capacity

    def finish(self) -> Announcements:
        """Waits for what all ranks say."""
        table = self._wait()
        most = int(table[:, 1].max())
        if most > self._capacity:
            self._start(1 << (most - 1).bit_length())
            table = self._wait()
        costs, sizes = np.split(table[:, _HEADER:], 2, axis=1)
        counts = table[:, 1]
        return Announcements(
            states=table[:, 0],
            counts=counts,
            structures=table[:, 2],
            settings=table[:, 3],
            costs=[row[:n] for row, n in zip(costs.view(np.float64), counts, strict=True)],
            sizes=[row[:n] for row, n in zip(sizes, counts, strict=True)],
        )

    def _start(self, capacity: int) -> None:
        own, samples = self._own, len(self._own.costs)
        row = np.zeros(_HEADER + 2 * capacity, dtype=np.int64)
        row[:_HEADER] = (own.state, samples, own.structure, own.settings)
        if samples <= capacity:
            costs, sizes = np.split(row[_HEADER:], 2)
            costs[:samples] = own.costs.view(np.int64)
            sizes[:samples] = own.sizes
        self._capacity = capacity
        self._row = torch.from_numpy(row)
        self._table = torch.empty(self._group.size() * len(row), dtype=torch.int64)
        self._work = all_gather_into_tensor(
            self._table, self._row, group=self._group, priority=Priority.LOW, async_op=True
        )

    def _wait(self) -> Integers:
        if self._work is not None:
            self._work.wait()
        table: Integers = self._table.view(self._group.size(), -1).numpy()
        return table
