"""All links of a small world, one by one."""

from collections.abc import Callable

from freescale_pg.simulate.cluster import Cluster
from freescale_pg.simulate.event_queue import EventQueue
from freescale_pg.simulate.send_queue import SendQueue
from freescale_pg.simulate.wire import Inlet, Message, Wire


class Links:
    """For each rank a wire to its host's other ranks, and one to all other hosts.

    Args:
        cluster: The machine.
        events: Of the simulation.
        note_busy: Called with a rank and until when one of its links is busy.
    """

    def __init__(
        self, cluster: Cluster, events: EventQueue, note_busy: Callable[[int, float], None]
    ) -> None:
        self._cluster = cluster
        rates = cluster.nvlink_bytes_per_second, cluster.nic_bytes_per_second
        self._wires: list[list[Wire]] = []
        for rate in rates:
            limit = rate if cluster.limits_ingress else float("inf")
            inlets = [Inlet(limit) for _ in range(cluster.ranks)]
            self._wires.append(
                [
                    Wire(
                        events,
                        rate,
                        SendQueue[Message](cluster.ranks, cluster.chunk_bytes),
                        inlets,
                        note_busy,
                        rank,
                    )
                    for rank in range(cluster.ranks)
                ]
            )

    def interleave(self, sender: int, receiver: int, size: float) -> bool:
        """Sends a small message at once; False: it is too large, or too many went before it."""
        wire = self._wire(sender, receiver)
        if size > self._cluster.inline_bytes or not wire.may_interleave():
            return False
        wire.interleave(size)
        return True

    def send(self, sender: int, message: Message, level: int, size: float) -> None:
        """Sends a granted message."""
        self._wire(sender, message.receiver).send(message, level, size)

    def _wire(self, sender: int, receiver: int) -> Wire:
        is_far = self._cluster.host_of(sender) != self._cluster.host_of(receiver)
        return self._wires[is_far][sender]
