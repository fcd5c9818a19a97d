"""Collectives on torch's ``MultiProcContinuousTest``: one set of ranks serves all tests of a class.

torch ships the base class without tests of its own.
"""

import functools
import itertools
import math
import unittest
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.testing._internal.common_utils import instantiate_parametrized_tests, parametrize

from conformance.ranks import LastingRanks

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
COUNTS = [0, 1, 5, 1000]
REDUCTIONS: dict[str, tuple[Any, Callable[..., torch.Tensor]]] = {
    "sum": (dist.ReduceOp.SUM, torch.add),
    "product": (dist.ReduceOp.PRODUCT, torch.mul),
    "min": (dist.ReduceOp.MIN, torch.minimum),
    "max": (dist.ReduceOp.MAX, torch.maximum),
    "and": (dist.ReduceOp.BAND, torch.bitwise_and),
    "or": (dist.ReduceOp.BOR, torch.bitwise_or),
    "xor": (dist.ReduceOp.BXOR, torch.bitwise_xor),
}


def load(backend: str, ranks: int) -> list[type[unittest.TestCase]]:
    """Returns the test classes for a world of ``ranks`` on ``backend``."""
    torch.multiprocessing.set_start_method("fork")
    Collectives.backend_name = backend
    Collectives.world_size = ranks
    return [ContinuousTest, BeyondGlooTest]


def numbered(
    shape: tuple[int, ...] | int, *key: int, dtype: torch.dtype = torch.int64
) -> torch.Tensor:
    """Returns a tensor whose elements differ from each other and from those of other keys."""
    shape = (shape,) if isinstance(shape, int) else shape
    start = 1
    for part in key:
        start = 31 * start + part
    values = torch.arange(math.prod(shape)).reshape(shape) + start
    return values % 3 == 0 if dtype == torch.bool else values.to(dtype)


def poisoned(shape: tuple[int, ...] | int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Returns an output whose contents no correct collective leaves in place."""
    return torch.full((shape,) if isinstance(shape, int) else shape, -7).to(dtype)


def rows(sender: int, receiver: int) -> int:
    """How many rows one rank sends another where that differs; from none to three."""
    return (sender + 2 * receiver) % 4


def reduced(op: str, parts: list[torch.Tensor]) -> torch.Tensor:
    """Returns what a reduction of whole numbers gives, calculated here."""
    return functools.reduce(REDUCTIONS[op][1], parts)


class Collectives(LastingRanks):
    backend_name = ""
    pg: dist.ProcessGroup  # Set by the base class on each rank.

    @classmethod
    def backend_str(cls) -> str:
        return cls.backend_name

    @classmethod
    def device_type(cls) -> str:
        return "cpu"

    def assert_same(self, actual: object, expected: object) -> None:
        self.assertEqual(actual, expected, rtol=0, atol=0)

    def check_each_root(self, dtype: torch.dtype) -> None:
        ranks = range(self.world_size)
        for root in ranks:
            shared = numbered(6, root, dtype=dtype) if self.rank == root else poisoned(6, dtype)
            dist.broadcast(shared, root)
            self.assert_same(shared, numbered(6, root, dtype=dtype))
            parts = [numbered(4, root, peer, dtype=dtype) for peer in ranks]
            mine = poisoned(4, dtype)
            dist.scatter(mine, parts if self.rank == root else None, root)
            self.assert_same(mine, parts[self.rank])
            gathered = [poisoned(4, dtype) for _ in ranks] if self.rank == root else None
            dist.gather(mine, gathered, root)
            if gathered is not None:
                self.assert_same(gathered, parts)


class ContinuousTest(Collectives):
    @parametrize("dtype", DTYPES)
    @parametrize("count", COUNTS)
    def test_all_to_all_single(self, dtype: torch.dtype, count: int) -> None:
        ranks = range(self.world_size)
        sent = torch.cat([numbered((count, 3), self.rank, peer, dtype=dtype) for peer in ranks])
        received = poisoned((count * self.world_size, 3), dtype)
        dist.all_to_all_single(received, sent)
        expected = [numbered((count, 3), peer, self.rank, dtype=dtype) for peer in ranks]
        self.assert_same(received, torch.cat(expected))

    @parametrize("dtype", DTYPES)
    def test_all_to_all_single_uneven(self, dtype: torch.dtype) -> None:
        ranks = range(self.world_size)
        outgoing = [rows(self.rank, peer) for peer in ranks]
        incoming = [rows(peer, self.rank) for peer in ranks]
        sent = torch.cat(
            [numbered((n, 3), self.rank, peer, dtype=dtype) for peer, n in enumerate(outgoing)]
        )
        received = poisoned((sum(incoming), 3), dtype)
        dist.all_to_all_single(received, sent, incoming, outgoing)
        expected = [
            numbered((n, 3), peer, self.rank, dtype=dtype) for peer, n in enumerate(incoming)
        ]
        self.assert_same(received, torch.cat(expected))

    def test_all_to_all_backward(self) -> None:
        ranks = range(self.world_size)
        outgoing = [rows(self.rank, peer) for peer in ranks]
        incoming = [rows(peer, self.rank) for peer in ranks]
        sent = numbered((sum(outgoing), 2), self.rank, dtype=torch.float32).requires_grad_()
        received = functional.all_to_all_single_autograd(sent, incoming, outgoing, self.pg)
        weights = [
            numbered((n, 2), peer, self.rank, dtype=torch.float32)
            for peer, n in enumerate(incoming)
        ]
        (received * torch.cat(weights)).sum().backward()
        expected = [
            numbered((n, 2), self.rank, peer, dtype=torch.float32)
            for peer, n in enumerate(outgoing)
        ]
        self.assert_same(sent.grad, torch.cat(expected))

    @parametrize("dtype", DTYPES)
    @parametrize("count", COUNTS)
    def test_all_gather(self, dtype: torch.dtype, count: int) -> None:
        mine = numbered(count, self.rank, dtype=dtype)
        expected = [numbered(count, peer, dtype=dtype) for peer in range(self.world_size)]
        whole = poisoned(count * self.world_size, dtype)
        dist.all_gather_into_tensor(whole, mine)
        self.assert_same(whole, torch.cat(expected))
        parts = [poisoned(count, dtype) for _ in expected]
        dist.all_gather(parts, mine)
        self.assert_same(parts, expected)

    @parametrize("op", list(REDUCTIONS))
    @parametrize("count", COUNTS)
    def test_all_reduce(self, op: str, count: int) -> None:
        tensor = numbered(count, self.rank)
        dist.all_reduce(tensor, REDUCTIONS[op][0])
        parts = [numbered(count, peer) for peer in range(self.world_size)]
        self.assert_same(tensor, reduced(op, parts))

    @parametrize("op", ["sum", "max"])
    def test_reduce_to_each(self, op: str) -> None:
        parts = [numbered(9, peer) for peer in range(self.world_size)]
        for root in range(self.world_size):
            tensor = numbered(9, self.rank)
            dist.reduce(tensor, root, REDUCTIONS[op][0])
            if self.rank == root:
                self.assert_same(tensor, reduced(op, parts))

    @parametrize("op", ["sum", "product", "min", "max"])
    def test_reduce_scatter(self, op: str) -> None:
        ranks = range(self.world_size)
        whole = numbered((self.world_size, 5), self.rank)
        expected = reduced(op, [numbered((self.world_size, 5), peer)[self.rank] for peer in ranks])
        mine = poisoned(5)
        dist.reduce_scatter_tensor(mine, whole.flatten(), REDUCTIONS[op][0])
        self.assert_same(mine, expected)
        mine = poisoned(5)
        dist.reduce_scatter(mine, list(whole.unbind()), REDUCTIONS[op][0])
        self.assert_same(mine, expected)

    @parametrize("dtype", [dtype for dtype in DTYPES if not dtype.is_complex])
    def test_from_and_to_each_root(self, dtype: torch.dtype) -> None:
        self.check_each_root(dtype)

    def test_wait_in_reverse_order(self) -> None:
        tensors = [numbered(50, self.rank, step) for step in range(8)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for step, work in reversed(list(enumerate(works))):
            assert work is not None
            work.wait()
            parts = [numbered(50, peer, step) for peer in range(self.world_size)]
            self.assert_same(tensors[step], reduced("sum", parts))

    def test_ring(self) -> None:
        following, preceding = (self.rank + 1) % self.world_size, (self.rank - 1) % self.world_size
        received = poisoned(7)
        requests = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.irecv, received, preceding),
                dist.P2POp(dist.isend, numbered(7, self.rank), following),
            ]
        )
        for request in requests:
            request.wait()
        self.assert_same(received, numbered(7, preceding))

    def test_overlapping_groups(self) -> None:
        """Every pair of ranks has a group of its own, and each rank is in several."""
        for pair in itertools.combinations(range(self.world_size), 2):
            group = dist.new_group(list(pair))
            if self.rank in pair:
                received = poisoned(8)
                place = pair.index(self.rank)
                sent = torch.cat([numbered(4, self.rank, peer) for peer in pair])
                dist.all_to_all_single(received, sent, group=group)
                expected = [numbered(4, peer, pair[place]) for peer in pair]
                self.assert_same(received, torch.cat(expected))
                dist.destroy_process_group(group)


class BeyondGlooTest(Collectives):
    """What gloo fails at, apart from the others: torch skips the rest of a class that fails."""

    def test_from_and_to_each_root_complex(self) -> None:
        self.check_each_root(torch.complex64)

    @parametrize("dtype", DTYPES)
    def test_all_to_all_uneven(self, dtype: torch.dtype) -> None:
        ranks = range(self.world_size)
        sent = [
            numbered((rows(self.rank, peer), 2), self.rank, peer, dtype=dtype) for peer in ranks
        ]
        received = [poisoned((rows(peer, self.rank), 2), dtype) for peer in ranks]
        dist.all_to_all(received, sent)
        expected = [
            numbered((rows(peer, self.rank), 2), peer, self.rank, dtype=dtype) for peer in ranks
        ]
        self.assert_same(received, expected)

    def test_monitored_barrier(self) -> None:
        """By the group's method, as torch's function is for gloo only; under DETAIL gloo fails."""
        group: Any = self.pg
        for wait_all_ranks in (False, True):
            tensor = numbered(5, self.rank)
            dist.all_reduce(tensor)
            group.monitored_barrier(timedelta(seconds=60), wait_all_ranks)
            parts = [numbered(5, peer) for peer in range(self.world_size)]
            self.assert_same(tensor, reduced("sum", parts))


instantiate_parametrized_tests(ContinuousTest)
instantiate_parametrized_tests(BeyondGlooTest)
