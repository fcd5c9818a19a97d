"""The exchange on any backend that has ``all_to_all_single``, timed from outside."""

import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from seqrec.exchange import BlockedTime


@dataclass
class _Account:
    calls: int = 0
    bytes_sent: int = 0
    seconds: float = 0.0


class C10dExchange:
    """An ``Exchange`` on a plain group of the default backend."""

    caption = (
        "rank 0: time inside the calls of the embedding exchange; "
        "DDP's all_reduce cannot be timed from outside and is missing"
    )

    def __init__(self) -> None:
        self._group = dist.new_group()
        self._account = _Account()

    def all_to_all(
        self, rows: Tensor, received: list[int] | None = None, sent: list[int] | None = None
    ) -> Tensor:
        """See ``Exchange.all_to_all``."""
        output: Tensor = _AllToAll.apply(self, rows, received, sent)  # type: ignore[no-untyped-call]
        return output

    def exchange(self, rows: Tensor, received: list[int] | None, sent: list[int] | None) -> Tensor:
        """Does one exchange without autograd and books its time."""
        count = len(rows) if received is None else sum(received)
        output = rows.new_empty((count, *rows.shape[1:]))
        start = time.perf_counter()
        dist.all_to_all_single(output, rows.contiguous(), received, sent, group=self._group)
        self._account.seconds += time.perf_counter() - start
        self._account.calls += 1
        kept = len(rows) // self._group.size() if sent is None else sent[self._group.rank()]
        self._account.bytes_sent += rows[kept:].nbytes
        return output

    def reset(self) -> None:
        """See ``Exchange.reset``."""
        self._account = _Account()

    def blocked(self) -> list[BlockedTime]:
        """See ``Exchange.blocked``."""
        account = self._account
        return [
            BlockedTime(
                "-", "all_to_all_single", account.calls, account.bytes_sent, account.seconds
            )
        ]


class _AllToAll(torch.autograd.Function):
    """The backward of an exchange is the exchange with the splits the other way round."""

    @staticmethod
    def forward(
        ctx: Any,
        exchange: C10dExchange,
        rows: Tensor,
        received: list[int] | None,
        sent: list[int] | None,
    ) -> Tensor:
        ctx.exchange, ctx.received, ctx.sent = exchange, received, sent
        return exchange.exchange(rows, received, sent)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, None, None]:
        return None, ctx.exchange.exchange(gradients[0], ctx.sent, ctx.received), None, None
