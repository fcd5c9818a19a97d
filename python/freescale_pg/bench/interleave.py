"""Timing several calls against each other so that a busy machine's noise hits all alike."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Mapping

import torch
import torch.distributed as dist

from freescale_pg.bench.barrier import Barrier
from freescale_pg.bench.contestants import Call
from freescale_pg.bench.ranks import agreed

FEWEST_ROUNDS = 7
MOST_ROUNDS = 3000
_SEED = 20


def timed_call(call: Call, barrier: Barrier) -> float:
    """Seconds that this rank spends in ``call``, which all ranks enter together.

    An untimed call goes before, so that a contestant finds the caches as a loop of its own calls
    would leave them and not as its predecessor did.
    """
    call()
    barrier.wait()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def choose_rounds(calls: Mapping[str, Call], barrier: Barrier, seconds: float) -> int:
    """Rounds that take about ``seconds``, the same number on every rank. A collective call."""
    start = time.perf_counter()
    for call in calls.values():
        timed_call(call, barrier)
    one_round = agreed(time.perf_counter() - start)
    return min(MOST_ROUNDS, max(FEWEST_ROUNDS, round(seconds / one_round)))


def interleave(calls: Mapping[str, Call], barrier: Barrier, rounds: int) -> dict[str, torch.Tensor]:
    """Times every call once per round, in an order that changes from round to round.

    The order is shuffled, the same way on all ranks: a rotation would keep each call behind the
    same predecessor.

    Args:
        calls: by contestant; the same names on every rank.
        barrier: starts each timed call on all ranks together.
        rounds: samples per call.

    Returns:
        By name, float64 of shape ``(rounds,)``: seconds until the last rank was done, that is the
        maximum over the ranks of the time each spent in the call.
    """
    shuffle = random.Random(_SEED).shuffle
    names = sorted(calls)
    samples: dict[str, list[float]] = {name: [] for name in names}
    gc.disable()
    for _ in range(rounds):
        shuffle(names)
        for name in names:
            samples[name].append(timed_call(calls[name], barrier))
    gc.enable()
    return {name: _slowest_rank(samples[name]) for name in sorted(samples)}


def _slowest_rank(samples: list[float]) -> torch.Tensor:
    slowest = torch.tensor(samples, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest
