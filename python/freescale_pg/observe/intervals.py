"""Sets of times: disjoint intervals [begin, end) in order, as int64 arrays of shape (n, 2)."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Intervals = npt.NDArray[np.int64]


def union(intervals: Iterable[tuple[int, int]] | Intervals) -> Intervals:
    """Returns the times that are in any of the intervals, which may overlap and be empty."""
    given = np.array(list(intervals), dtype=np.int64).reshape(-1, 2)
    given = given[given[:, 0] < given[:, 1]]
    if not len(given):
        return given
    given = given[np.argsort(given[:, 0], kind="stable")]
    ends = np.maximum.accumulate(given[:, 1])
    # One begins a new interval if it begins after the end of all before it.
    first = np.flatnonzero(np.r_[True, given[1:, 0] > ends[:-1]])
    last = np.r_[first[1:] - 1, len(given) - 1]
    return np.column_stack([given[first, 0], ends[last]])


def subtract(times: Intervals, others: Intervals) -> Intervals:
    """Returns the times that are not in ``others``."""
    if not len(times) or not len(others):
        return times
    # What lies between the others, from before the first to after the last.
    low, high = times[0, 0], times[-1, 1]
    begins = np.r_[min(low, others[0, 0]), others[:, 1]]
    ends = np.r_[others[:, 0], max(high, others[-1, 1])]
    return intersect(times, np.column_stack([begins, ends]))


def intersect(times: Intervals, others: Intervals) -> Intervals:
    """Returns the times that are in both."""
    found: list[tuple[int, int]] = []
    i = j = 0
    while i < len(times) and j < len(others):
        begin = max(times[i, 0], others[j, 0])
        end = min(times[i, 1], others[j, 1])
        if begin < end:
            found.append((int(begin), int(end)))
        if times[i, 1] < others[j, 1]:
            i += 1
        else:
            j += 1
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def clip(times: Intervals, begin: int, end: int) -> Intervals:
    """Returns the times within a stretch."""
    return intersect(times, union([(begin, end)]))


def total(times: Intervals) -> int:
    """Returns how long the times are together."""
    return int((times[:, 1] - times[:, 0]).sum())
