"""The seam between recommender and backend: a differentiable ragged exchange, and its accounts."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class BlockedTime:
    """What one kind of collective cost this rank.

    Attributes:
        priority: Name of the priority, or ``"-"`` where the backend has none.
        op: Name of the collective.
        calls: Number of calls.
        bytes_sent: Bytes sent to other ranks; what a rank keeps for itself is not counted.
        seconds: Time for which a caller was blocked.
    """

    priority: str
    op: str
    calls: int
    bytes_sent: int
    seconds: float


class Exchange(Protocol):
    """Exchanges rows between ranks on a group of its own."""

    @property
    def caption(self) -> str:
        """Says what ``blocked`` covers."""
        ...

    def all_to_all(
        self, rows: Tensor, received: list[int] | None = None, sent: list[int] | None = None
    ) -> Tensor:
        """Sends consecutive rows to each rank, and their gradients back; collective.

        Args:
            rows: What to send, cut along dimension 0.
            received: Rows that come from each rank; None for equal parts.
            sent: Rows that go to each rank; None for equal parts.

        Returns:
            The received rows in the order of the ranks.
        """
        ...

    def reset(self) -> None:
        """Starts the accounts at zero."""
        ...

    def blocked(self) -> list[BlockedTime]:
        """Returns the accounts since the last reset."""
        ...


def make_exchange(backend: str) -> Exchange:
    """Makes the exchange for a backend, with a new group over all ranks; collective."""
    if backend == "freescale":
        # Here and not above: other backends must not need the package.
        from seqrec.freescale_exchange import FreescaleExchange

        return FreescaleExchange()
    from seqrec.c10d_exchange import C10dExchange

    return C10dExchange()
