"""Made-up histories of items: a few are long, and a few items are in most of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import Dataset

ITEMS = 20_000
_MEDIAN_LENGTH, _SPREAD, _LONGEST = 60, 1.0, 1000


@dataclass(frozen=True)
class Batch:
    """Some histories, end to end, each with an item that was shown and whether it was clicked.

    Attributes:
        ids: Items of all histories, then the items shown; int64, shape ``[tokens + samples]``.
        lengths: Items of each history.
        clicked: 0 or 1; float32, shape ``[samples]``.
    """

    ids: Tensor
    lengths: list[int]
    clicked: Tensor

    def to(self, device: torch.device) -> "Batch":
        """Returns the batch with its tensors on a device."""
        return Batch(self.ids.to(device), self.lengths, self.clicked.to(device))


class Histories(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Histories of users who like either the even or the odd items, and click accordingly."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(1)
        normal = torch.randn(count, generator=generator)
        lengths = _MEDIAN_LENGTH * torch.exp(_SPREAD * normal)
        self.lengths = lengths.long().clamp(1, _LONGEST)
        tokens = int(self.lengths.sum())
        taste = torch.randint(2, (count,), generator=generator)
        self._clicked = torch.rand(count, generator=generator) < 0.5
        likes = torch.rand(tokens, generator=generator) < 0.9
        odd = taste.repeat_interleave(self.lengths) ^ ~likes
        shown_odd = taste ^ ~self._clicked
        self._histories = _draw(odd, generator).split(self.lengths.tolist())
        self._shown = _draw(shown_odd, generator)

    def __len__(self) -> int:
        """Returns the number of histories."""
        return len(self.lengths)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        """Returns a history, the item that was shown, and whether it was clicked."""
        return self._histories[index], self._shown[index], self._clicked[index]


def collate(samples: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Batch:
    """Makes a batch."""
    histories, shown, clicked = zip(*samples, strict=True)
    return Batch(
        torch.cat([*histories, torch.stack(shown)]),
        [len(history) for history in histories],
        torch.stack(clicked).float(),
    )


def _draw(odd: Tensor, generator: torch.Generator) -> Tensor:
    """Draws items, of which few are frequent and lie anywhere among the ids."""
    rank = (torch.rand(len(odd), generator=generator) ** 4 * (ITEMS // 2)).long()
    anywhere = torch.randperm(ITEMS // 2, generator=torch.Generator().manual_seed(2))
    return 2 * anywhere[rank] + odd
