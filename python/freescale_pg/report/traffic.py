"""What travelled between each two ranks, and how long it took, from the traces."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from freescale_pg.report.run import Message, RankRun, Run

_NANOSECONDS = 1e9


@dataclass(frozen=True, slots=True)
class LinkTraffic:
    """One direction of a link.

    Attributes:
        source: Rank that sends.
        target: Rank that receives.
        transport: Of the link; empty where no rank noted it.
        reason: Why that one.
        messages: Number of them.
        bytes: Of their payloads.
        counted_bytes: Of all payloads of the process, whether traced or not, as its counters have
            it at the end; None where no rank wrote them.
        median_ns: Of the time from matching to the last byte, of those that took any; None: all
            came with their headers.
        slow_ns: Its 99th percentile.
        rate: Bytes over the sum of these times, in bytes per second, of the same messages.
    """

    source: int
    target: int
    transport: str
    reason: str
    messages: int
    bytes: int
    median_ns: float | None
    slow_ns: float | None
    rate: float | None
    counted_bytes: int | None = None

    @property
    def total_bytes(self) -> int:
        """What is known of all that went over the link."""
        return self.bytes if self.counted_bytes is None else self.counted_bytes


def traffic_of(run: Run) -> list[LinkTraffic]:
    """Returns all links that were noted or used, by source and target.

    A message counts as its receiver saw it; where that one's trace is not there, as its sender did.
    """
    by_link: dict[tuple[int, int], list[Message]] = defaultdict(list)
    for rank in run.ranks.values():
        for source, target, message in _counted(rank, run):
            by_link[source, target].append(message)
    noted = {
        (rank.rank, link.peer): (link.transport, link.reason)
        for rank in run.ranks.values()
        for link in rank.links
        if link.peer != rank.rank
    }
    counted = _counters(run)
    return [
        _link(
            source,
            target,
            *noted.get((source, target), ("", "")),
            by_link[source, target],
            counted.get((source, target)),
        )
        for source, target in sorted({*by_link, *noted, *counted})
    ]


def _counters(run: Run) -> dict[tuple[int, int], int]:
    """Bytes by source and target, as the receiver counted them; else as the sender did."""
    counters: dict[tuple[int, int], int] = {}
    for rank in run.ranks.values():
        for each in rank.traffic:
            counters.setdefault((rank.rank, each.peer), each.bytes_sent)
    for rank in run.ranks.values():
        for each in rank.traffic:
            counters[each.peer, rank.rank] = each.bytes_received
    return counters


def _counted(rank: RankRun, run: Run) -> Iterator[tuple[int, int, Message]]:
    if rank.trace is None:
        return
    for message in rank.trace.messages:
        if message.is_incoming:
            yield message.peer, rank.rank, message
        elif (peer := run.ranks.get(message.peer)) is None or peer.trace is None:
            yield rank.rank, message.peer, message


def _link(
    source: int,
    target: int,
    transport: str,
    reason: str,
    messages: Iterable[Message],
    counted: int | None,
) -> LinkTraffic:
    all_of_them = list(messages)
    timed = [each for each in all_of_them if each.end > each.begin]
    times = np.array([each.end - each.begin for each in timed], dtype=np.float64)
    median, slow = np.percentile(times, [50, 99]).tolist() if len(times) else (None, None)
    moved = sum(each.bytes for each in timed)
    rate = moved / float(times.sum()) * _NANOSECONDS if len(times) else None
    total = sum(each.bytes for each in all_of_them)
    return LinkTraffic(
        source, target, transport, reason, len(all_of_them), total, median, slow, rate, counted
    )
