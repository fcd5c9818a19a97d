"""An embedding table whose rows are dealt to the ranks."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from seqrec.exchange import Exchange

# Initial values are drawn in blocks of this many rows, so that no rank ever holds the whole table.
_INIT_BLOCK_ROWS = 4096


class ShardedEmbedding(nn.Module):
    """A drop-in for ``nn.Embedding`` that holds row ``i`` on rank ``i % world_size``.

    Dealt round-robin, rows of neighbouring ids, which are often of like popularity, spread over the
    ranks. A forward asks the owners for each distinct id once: counts and ids go out, vectors come
    back, and in the backward pass the vectors' gradients return to the owners, where those of all
    ranks add up. They are then divided by the world size, which is the mean that DDP makes of dense
    gradients; so one loss serves both.

    Attributes:
        weight: This rank's rows; float32, shape ``[ceil((num_embeddings - rank) / world_size),
            dim]``. Its gradient is sparse, for ``torch.optim.SparseAdam``.
    """

    def __init__(
        self, num_embeddings: int, dim: int, exchange: Exchange, *, std: float, seed: int
    ) -> None:
        """Draws the table, the same whatever the number of ranks.

        Args:
            num_embeddings: Rows of the whole table.
            dim: Length of a row.
            exchange: How rows travel.
            std: Standard deviation of the initial values.
            seed: Seed of the initial values.
        """
        super().__init__()
        self.num_embeddings = num_embeddings
        self.dim = dim
        self._exchange = exchange
        self._rank, self._world_size = dist.get_rank(), dist.get_world_size()
        self.weight = nn.Parameter(self._initial_rows(std, seed))
        # The hook must not hold self: a circle would keep table and group alive until Python looks
        # for circles, long after the process group is destroyed.
        world_size = self._world_size
        self.weight.register_hook(lambda gradient: gradient / world_size)

    def forward(self, ids: Tensor) -> Tensor:
        """Looks up ids; collective.

        Args:
            ids: int64, shape ``[n]``; ``n`` may differ from rank to rank and may be 0.

        Returns:
            The rows; float32, shape ``[n, dim]``.
        """
        distinct, position = torch.unique(ids, return_inverse=True)
        owner = distinct % self._world_size
        by_owner = torch.argsort(owner, stable=True)
        rows = self._fetch(distinct[by_owner], torch.bincount(owner, minlength=self._world_size))
        place = torch.empty_like(by_owner)
        place[by_owner] = torch.arange(len(by_owner))
        return functional.embedding(place[position], rows)

    def _fetch(self, ids: Tensor, counts: Tensor) -> Tensor:
        """Fetches the rows of ids grouped by owner, ``counts[r]`` of them on rank ``r``."""
        asked = counts.tolist()
        given = self._exchange.all_to_all(counts).tolist()
        wanted = self._exchange.all_to_all(ids, given, asked)
        rows = functional.embedding(wanted // self._world_size, self.weight, sparse=True)
        return self._exchange.all_to_all(rows, asked, given)

    def _initial_rows(self, std: float, seed: int) -> Tensor:
        blocks = []
        for start in range(0, self.num_embeddings, _INIT_BLOCK_ROWS):
            generator = torch.Generator().manual_seed(seed * 1_000_003 + start)
            count = min(_INIT_BLOCK_ROWS, self.num_embeddings - start)
            block = torch.randn(count, self.dim, generator=generator) * std
            first_own = (self._rank - start) % self._world_size
            blocks.append(block[first_own :: self._world_size])
        return torch.cat(blocks)
