"""An embedding table whose rows lie on all ranks, as one writes it with two blocking exchanges."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional


class PlainTable(nn.Module):
    """Each rank holds a range of rows; a look-up fetches from the others what it needs.

    Args:
        rows: The whole table, the same on all ranks; each keeps its own part.
    """

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self._share = -(-len(rows) // dist.get_world_size())
        self._first = dist.get_rank() * self._share
        self.rows = nn.Parameter(rows[self._first : self._first + self._share].clone())

    def forward(self, ids: Tensor) -> Tensor:
        """Looks up; collective. Gradients become the mean over the ranks, as DDP's.

        Args:
            ids: int64, shape ``[n]``.

        Returns:
            float32, shape ``[n, dim]``.
        """
        distinct, place = ids.unique(return_inverse=True)
        asked = torch.bincount(distinct // self._share, minlength=dist.get_world_size())
        wanted = torch.empty_like(asked)
        dist.all_to_all_single(wanted, asked)
        here, there = asked.tolist(), wanted.tolist()
        incoming = distinct.new_empty(sum(there))
        dist.all_to_all_single(incoming, distinct, there, here)
        found = functional.embedding(incoming - self._first, self.rows, sparse=True)
        vectors: Tensor = _Exchange.apply(found, here, there)  # type: ignore[no-untyped-call]
        return vectors[place]


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, receive: list[int], send: list[int]) -> Tensor:
        ctx.receive, ctx.send = receive, send
        return _exchanged(rows, receive, send)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        back = _exchanged(gradients[0].contiguous(), ctx.send, ctx.receive)
        return back / dist.get_world_size(), None, None


def _exchanged(rows: Tensor, receive: list[int], send: list[int]) -> Tensor:
    output = rows.new_empty(sum(receive), rows.shape[1])
    dist.all_to_all_single(output, rows, receive, send)
    return output
