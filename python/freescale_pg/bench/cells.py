"""The measured operations: sizes, cuts, and what each rank must find in its output.

A *cell* is one operation at one size and world size. ``size`` is always the bytes of one rank's
**input** tensor: each peer gets ``size / W`` of it in an all-to-all, an all-gather's output holds
``W * size``, a reduce-scatter's ``size / W``. Elements are float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from freescale_pg.bench.splits import equal_splits, ragged_splits

ELEMENT_BYTES = 4
_BROADCAST_ROOT = 0


@dataclass(frozen=True)
class Part:
    """A run of output elements: the sum over ``sources`` of their inputs from ``start`` on.

    Attributes:
        sources: ranks whose data it holds; more than one only in a reduction.
        start: first element in each source's input.
        count: elements.
    """

    sources: tuple[int, ...]
    start: int
    count: int


@dataclass(frozen=True)
class Layout:
    """What one rank gives and gets.

    Attributes:
        input_count: elements of the input.
        parts: what arrives, in output order. Empty on a broadcast's root.
        in_place: the output is the input tensor.
        input_splits: elements per destination, only for an all-to-all.
        output_splits: elements per source, only for an all-to-all.
    """

    input_count: int
    parts: tuple[Part, ...]
    in_place: bool = False
    input_splits: tuple[int, ...] = ()
    output_splits: tuple[int, ...] = ()

    @property
    def received_count(self) -> int:
        """Elements that arrive, this rank's own part included."""
        return sum(part.count for part in self.parts)


def _exchange(cuts: list[int], rank: int) -> Layout:
    world_size = len(cuts)
    start = sum(cuts[:rank])
    parts = tuple(Part((source,), start, cuts[rank]) for source in range(world_size))
    received = (cuts[rank],) * world_size
    return Layout(sum(cuts), parts, input_splits=tuple(cuts), output_splits=received)


def _all_to_all_equal(count: int, rank: int, world_size: int) -> Layout:
    return _exchange(equal_splits(count, world_size), rank)


def _all_to_all_ragged(count: int, rank: int, world_size: int) -> Layout:
    return _exchange(ragged_splits(count, world_size), rank)


def _all_gather(count: int, rank: int, world_size: int) -> Layout:
    del rank
    return Layout(count, tuple(Part((source,), 0, count) for source in range(world_size)))


def _all_reduce(count: int, rank: int, world_size: int) -> Layout:
    del rank
    return Layout(count, (Part(tuple(range(world_size)), 0, count),), in_place=True)


def _reduce_scatter(count: int, rank: int, world_size: int) -> Layout:
    share = count // world_size
    return Layout(count, (Part(tuple(range(world_size)), rank * share, share),))


def _broadcast(count: int, rank: int, world_size: int) -> Layout:
    del world_size
    received = () if rank == _BROADCAST_ROOT else (Part((_BROADCAST_ROOT,), 0, count),)
    return Layout(count, received, in_place=True)


_LAYOUTS: dict[str, Callable[[int, int, int], Layout]] = {
    "all_to_all_single": _all_to_all_equal,
    "all_to_all_single_ragged": _all_to_all_ragged,
    "all_gather_into_tensor": _all_gather,
    "all_reduce": _all_reduce,
    "reduce_scatter_tensor": _reduce_scatter,
    "broadcast": _broadcast,
}
OPS = tuple(_LAYOUTS)
REDUCTIONS = ("all_reduce", "reduce_scatter_tensor")


@dataclass(frozen=True)
class Cell:
    """One operation at one size and world size.

    Attributes:
        op: one of ``OPS``.
        size: bytes of a rank's input; rounded up until all ranks get whole equal parts.
        world_size: number of ranks.
    """

    op: str
    size: int
    world_size: int

    @property
    def count(self) -> int:
        """Elements of a rank's input."""
        per_rank = -(-self.size // (ELEMENT_BYTES * self.world_size))
        return per_rank * self.world_size

    def layout(self, rank: int) -> Layout:
        """What ``rank`` gives and gets."""
        return _LAYOUTS[self.op](self.count, rank, self.world_size)

    @property
    def input_bytes(self) -> int:
        """Bytes of a rank's input."""
        return self.count * ELEMENT_BYTES

    @property
    def busiest_bytes(self) -> int:
        """Bytes that the rank with the largest output receives."""
        return ELEMENT_BYTES * max(
            self.layout(rank).received_count for rank in range(self.world_size)
        )

    @property
    def total_bytes(self) -> int:
        """Bytes that all ranks together receive."""
        return ELEMENT_BYTES * sum(
            self.layout(rank).received_count for rank in range(self.world_size)
        )

    @property
    def footprint_bytes(self) -> int:
        """Memory that measuring it takes, of the rank that needs most.

        Input and output, the input twice more in the shared mappings of the limit and the floor,
        and room for a backend that gathers into a buffer of its own first.
        """
        return 3 * self.input_bytes + 2 * self.busiest_bytes
