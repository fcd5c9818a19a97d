"""The dense part: attention within each history, and a score for the item that was shown."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from histories import Batch

DIM = 64
_LAYERS = 2


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query_key_value = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, 3 * DIM))
        self.project = nn.Linear(DIM, DIM)
        self.network = nn.Sequential(
            nn.LayerNorm(DIM), nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM)
        )

    def forward(self, hidden: Tensor, lengths: list[int]) -> Tensor:
        mixed = [
            functional.scaled_dot_product_attention(*history[None].chunk(3, dim=2))[0]
            for history in self.query_key_value(hidden).split(lengths)
        ]
        hidden = hidden + self.project(torch.cat(mixed))
        output: Tensor = hidden + self.network(hidden)
        return output


class Ranker(nn.Module):
    """Predicts clicks from the vectors of a batch's items."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Block() for _ in range(_LAYERS))

    def forward(self, vectors: Tensor, batch: Batch) -> Tensor:
        """Returns the loss of each sample, in nats.

        Args:
            vectors: Of ``batch.ids``; float32, shape ``[tokens + samples, DIM]``.
            batch: What they belong to.
        """
        tokens = sum(batch.lengths)
        hidden, shown = vectors[:tokens], vectors[tokens:]
        for block in self.blocks:
            hidden = block(hidden, batch.lengths)
        users = torch.stack([history.mean(0) for history in hidden.split(batch.lengths)])
        return functional.binary_cross_entropy_with_logits(
            (users * shown).sum(1) / DIM**0.5, batch.clicked, reduction="none"
        )
