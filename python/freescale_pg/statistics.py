"""What this process's collectives have cost since the start or the last reset."""

from dataclasses import dataclass, field

from freescale_pg._extension import _C
from freescale_pg._priority import Priority


@dataclass(frozen=True, slots=True)
class OpStats:
    """Totals of one operation at one priority, over all groups of this process.

    Attributes:
        op: Name of the operation, e.g. "all_to_all_single", "all_reduce".
        priority: Name of the priority, e.g. "URGENT".
        calls: Calls made.
        bytes_sent: To other ranks; what a rank keeps for itself is not counted.
        bytes_received: From other ranks.
        blocked_seconds: Time that callers spent inside ``wait()``.
        in_flight_seconds: Time from call to completion, summed over calls that may overlap.
    """

    op: str
    priority: str
    calls: int
    bytes_sent: int
    bytes_received: int
    blocked_seconds: float
    in_flight_seconds: float


@dataclass(frozen=True, slots=True)
class LinkStats:
    """Totals of what has travelled between this rank and another one, over all groups.

    Attributes:
        peer: The other one; of all ranks.
        bytes_sent: To it: payloads of operations that ended well.
        bytes_received: From it.
    """

    peer: int
    bytes_sent: int
    bytes_received: int


@dataclass(frozen=True, slots=True)
class Stats:
    """One snapshot.

    Attributes:
        ops: The operations that were called, most urgent first, then by name.
        links: The other ranks that bytes went to or came from, by rank.
    """

    ops: list[OpStats]
    links: list[LinkStats] = field(default_factory=list)

    def __str__(self) -> str:
        """A table for people, one line for each operation and priority."""
        lines = [
            _row("op", "priority", "calls", "MB sent", "MB received", "blocked s", "in flight s")
        ]
        lines += [
            _row(
                op.op,
                op.priority,
                str(op.calls),
                f"{op.bytes_sent / 1e6:.3f}",
                f"{op.bytes_received / 1e6:.3f}",
                f"{op.blocked_seconds:.3f}",
                f"{op.in_flight_seconds:.3f}",
            )
            for op in self.ops
        ]
        return "\n".join(lines)


def _row(op: str, priority: str, *numbers: str) -> str:
    return f"{op:<31} {priority:<10}" + "".join(f" {number:>12}" for number in numbers)


def stats() -> Stats:
    """Returns the totals so far. Operations still in flight have counted their call already."""
    rows = sorted(_C.statistics(), key=lambda row: (row.priority, row.op))
    return Stats(
        ops=[
            OpStats(
                op=row.op,
                priority=Priority(row.priority).name,
                calls=row.calls,
                bytes_sent=row.bytes_sent,
                bytes_received=row.bytes_received,
                blocked_seconds=row.blocked_seconds,
                in_flight_seconds=row.in_flight_seconds,
            )
            for row in rows
        ],
        links=[
            LinkStats(row.peer, row.bytes_sent, row.bytes_received) for row in _C.link_statistics()
        ],
    )


def reset_stats() -> None:
    """Sets all totals to zero."""
    _C.reset_statistics()
