"""Ways to deal a global batch out to ranks, equally many samples each, to compare with.

Each takes integer costs of shape ``[n]`` and a number of ranks that divides ``n``, and returns the
rank of each sample, int of shape ``[n]``.
"""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from freescale_pg._extension import _C

Integers = npt.NDArray[np.int64]


def in_turn(costs: Integers, world_size: int) -> Integers:
    """What ``DistributedSampler`` does: the order is random already."""
    return np.arange(len(costs)) % world_size


def random(costs: Integers, world_size: int) -> Integers:
    """Any samples to any rank."""
    return np.random.default_rng(len(costs)).permutation(in_turn(costs, world_size))


def sort_and_stride(costs: Integers, world_size: int) -> Integers:
    """Sorted by cost, then in turn: every rank gets one of the longest, one of the next, …."""
    ranks = np.empty(len(costs), dtype=np.int64)
    ranks[np.argsort(-costs, kind="stable")] = in_turn(costs, world_size)
    return ranks


def karmarkar_karp(costs: Integers, world_size: int) -> Integers:
    """Largest differencing with equally many samples (Michiels, Korst and Aarts 2003).

    The sorted samples are cut into rows of one per rank. The two rows whose loads differ most are
    merged, the heaviest part of one with the lightest of the other, until one row is left.
    """
    order = np.argsort(-costs, kind="stable").reshape(-1, world_size)
    rows: list[tuple[int, int, Integers, Integers]] = []
    for number, samples in enumerate(order):
        loads = costs[samples]
        heapq.heappush(rows, (-int(loads[0] - loads[-1]), number, loads, samples[:, None]))
    number = len(rows)
    while len(rows) > 1:
        _, _, loads, parts = heapq.heappop(rows)
        _, _, other_loads, other_parts = heapq.heappop(rows)
        sums = loads + other_loads[::-1]
        heavy_first = np.argsort(-sums, kind="stable")
        loads = sums[heavy_first]
        parts = np.concatenate([parts, other_parts[::-1]], axis=1)[heavy_first]
        heapq.heappush(rows, (-int(loads[0] - loads[-1]), number, loads, parts))
        number += 1
    ranks = np.empty(len(costs), dtype=np.int64)
    ranks[rows[0][3]] = np.arange(world_size)[:, None]
    return ranks


def freescale(costs: Integers, world_size: int) -> Integers:
    """The planner under test."""
    ranks, _ = _C.plan_balance(costs, world_size, True)
    return ranks.astype(np.int64)


CONTESTANTS = {
    "DistributedSampler": in_turn,
    "random": random,
    "sort-and-stride": sort_and_stride,
    "Karmarkar-Karp": karmarkar_karp,
    "freescale": freescale,
}
