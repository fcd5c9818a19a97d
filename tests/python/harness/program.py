"""What a property test runs: a few collectives, described by plain values."""

import random
from dataclasses import dataclass

# Of collectives that only move bytes, of those that combine, and of point-to-point operations.
MOVES = [
    "all_to_all_single",
    "all_to_all_single_equal",
    "all_to_all",
    "functional_all_to_all_single",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_into_stack",
    "all_gather_in_place",
    "all_gather_of_several",
    "all_gather_coalesced",
    "functional_all_gather_single",
    "broadcast",
    "scatter",
    "gather",
]
REDUCTIONS = [
    "all_reduce",
    "all_reduce_of_several",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_stack",
    "reduce_scatter_in_place",
    "reduce_scatter_of_several",
]
MESSAGES = ["send_and_receive", "batch_isend_irecv"]
# Kinds whose pieces may be tensors without a dimension.
SCALARS = {
    *("all_to_all", "all_gather", "all_gather_into_stack", "all_gather_coalesced"),
    *("broadcast", "scatter", "gather", "all_reduce", "all_reduce_of_several", "reduce"),
    *("reduce_scatter", "reduce_scatter_stack", "send_and_receive", "batch_isend_irecv"),
}
# They return a value instead of a work, so their callers block.
BLOCKING_ONLY = {"functional_all_to_all_single", "functional_all_gather_single"}


@dataclass(frozen=True)
class Call:
    """One collective, as all members of a group call it.

    Attributes:
        kind: One of :data:`MOVES`, :data:`REDUCTIONS`, :data:`MESSAGES` or "barrier".
        group: Index into :func:`memberships`.
        dtype: Name in torch, e.g. "float32".
        rows: ``rows[s][r]`` of the piece that group rank s has for group rank r. Kinds whose
            pieces are the same for all senders or receivers use the first row, column or entry.
        tail: Shape of a row.
        scalar: Pieces have no dimension at all, where the kind allows that.
        root: Group rank, for the kinds that have one.
        op: Name of the reduction, e.g. "SUM".
        layouts: Indices of the memory layouts of inputs and outputs; each rank adds its own
            number, so that ranks differ.
        priority: Index of the priority, to which each rank adds its number; None: the group's.
        blocking: Wait within the call.
        tag: Of messages.
    """

    kind: str
    group: int
    dtype: str
    rows: tuple[tuple[int, ...], ...]
    tail: tuple[int, ...]
    scalar: bool
    root: int
    op: str
    layouts: tuple[int, int]
    priority: int | None
    blocking: bool
    tag: int


@dataclass(frozen=True)
class Program:
    """Calls in the order in which each group's members make them.

    Attributes:
        calls: All calls.
        order: Seed of what each rank may choose by itself: the order of calls on different
            groups, where none blocks, and the order and way of waiting.
    """

    calls: tuple[Call, ...]
    order: int

    def issue_order(self, rank: int) -> list[int]:
        """Positions of the calls as this rank makes them; within a group the order is common."""
        if any(call.blocking for call in self.calls):
            # Ranks that block in different groups may wait for each other.
            return list(range(len(self.calls)))
        choice = random.Random(f"issue {self.order} {rank}")
        queues: dict[int, list[int]] = {}
        for position, call in enumerate(self.calls):
            queues.setdefault(call.group, []).append(position)
        order = []
        while queues:
            group = choice.choice(sorted(queues))
            order.append(queues[group].pop(0))
            if not queues[group]:
                del queues[group]
        return order


def memberships(world: int) -> list[list[int]]:
    """The global ranks in each group that programs of this world size use, in ascending order."""
    everyone = list(range(world))
    return [
        everyone,
        everyone,
        everyone,
        everyone[::2],
        everyone[world // 2 :],
        sorted({0, world - 1}),
    ]
