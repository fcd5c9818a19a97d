"""Sets of times, compared with sets of moments."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from freescale_pg.observe.intervals import Intervals, intersect, subtract, total, union

PROFILE = settings(derandomize=True, database=None, deadline=None)

moments = st.integers(min_value=0, max_value=20)
intervals = st.lists(st.tuples(moments, moments), max_size=8)


def as_set(times: Intervals) -> set[int]:
    return {moment for begin, end in times.tolist() for moment in range(begin, end)}


def check_form(times: Intervals) -> None:
    """Disjoint, not even touching where they come from a union, in order, none empty."""
    assert times.dtype == np.int64 and times.ndim == 2 and times.shape[1] == 2
    flat = times.reshape(-1)
    assert (np.diff(flat) >= 0).all() and (times[:, 0] < times[:, 1]).all()


@PROFILE
@given(intervals)
def test_union(some: list[tuple[int, int]]) -> None:
    times = union(some)
    check_form(times)
    expected = {moment for begin, end in some for moment in range(begin, end)}
    assert as_set(times) == expected
    assert total(times) == len(expected)
    assert len(times) == len([m for m in expected if m - 1 not in expected])


@PROFILE
@given(intervals, intervals)
def test_difference_and_intersection(
    some: list[tuple[int, int]], others: list[tuple[int, int]]
) -> None:
    left, right = union(some), union(others)
    for times, expected in (
        (subtract(left, right), as_set(left) - as_set(right)),
        (intersect(left, right), as_set(left) & as_set(right)),
    ):
        check_form(times)
        assert as_set(times) == expected
