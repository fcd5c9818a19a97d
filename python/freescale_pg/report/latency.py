"""How long calls took, by priority, from the traces."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from freescale_pg.report.run import PRIORITIES, Call, Run

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Latency:
    """Calls of one kind, on all ranks; times in ns, ascending.

    Attributes:
        priority: Name of the priority.
        op: Name of the operation; None: all of them.
        whole: From the call to its end.
        transfer: From when the last rank had come, to the end.
        failed: Calls that failed, which are not among those.
    """

    priority: str
    op: str | None
    whole: FloatArray
    transfer: FloatArray
    failed: int

    def percentile(self, percent: float) -> float:
        """Returns a percentile of the whole times; there must be some."""
        return float(np.percentile(self.whole, percent))


def latencies(run: Run) -> list[Latency]:
    """Returns the calls by priority, the most urgent first."""
    by_priority = _grouped(run, lambda call: (call.priority, None))
    return sorted(by_priority, key=lambda each: PRIORITIES.index(each.priority))


def latencies_by_op(run: Run) -> list[Latency]:
    """Returns the calls by priority and operation."""
    found = _grouped(run, lambda call: (call.priority, call.op))
    return sorted(found, key=lambda each: (PRIORITIES.index(each.priority), each.op or ""))


def _grouped(run: Run, key_of: Callable[[Call], tuple[str, str | None]]) -> list[Latency]:
    calls: dict[tuple[str, str | None], list[Call]] = defaultdict(list)
    for rank in run.ranks.values():
        for call in rank.trace.calls if rank.trace is not None else ():
            calls[key_of(call)].append(call)
    return [_latency(*key, of_key) for key, of_key in calls.items()]


def _latency(priority: str, op: str | None, calls: list[Call]) -> Latency:
    well = [call for call in calls if not call.failed]
    whole = np.sort(np.array([call.end - call.begin for call in well], dtype=np.float64))
    transfer = np.sort(np.array([call.end - call.ready for call in well], dtype=np.float64))
    return Latency(priority, op, whole, transfer, len(calls) - len(well))
