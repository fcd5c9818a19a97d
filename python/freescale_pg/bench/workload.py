"""One rank's tensors of a measured operation: filled, poisoned, and checked element by element."""

from __future__ import annotations

import torch

from freescale_pg.bench.cells import Cell, Part
from freescale_pg.bench.devices import CPU

# Data repeats with a prime period, so a part delivered at a wrong offset does not match; sums over
# up to 2^14 ranks stay exact in float32.
_PERIOD = 1021
_RANK_STEP = 17
_CHECK_CHUNK = 1 << 20


class Workload:
    """One rank's tensors of a cell, filled with data that differs by rank and element.

    Data are made and compared on the CPU, whatever the device: no kernel of it runs.

    Args:
        cell: The operation.
        rank: This one.
        device: Where the tensors are.

    Attributes:
        layout: What this rank gives and gets.
        input: float32, shape ``(layout.input_count,)``.
        output: float32, shape ``(layout.received_count,)``; the input where it is in place.
    """

    def __init__(self, cell: Cell, rank: int, device: torch.device = CPU) -> None:
        self.cell = cell
        self.rank = rank
        self.layout = cell.layout(rank)
        self.input = pattern(rank, 0, self.layout.input_count).to(device)
        self.output = self.input
        if not self.layout.in_place:
            self.output = torch.empty(self.layout.received_count, device=device)

    def poison(self) -> None:
        """Makes the output wrong everywhere, and the input right again where it is the output."""
        contributes = self.cell.op == "all_reduce" or not self.layout.parts
        if self.layout.in_place and contributes:
            self.output.copy_(pattern(self.rank, 0, self.layout.input_count))
        else:
            self.output.copy_(torch.full((self.output.numel(),), float("nan")))

    def settle(self) -> None:
        """Makes the data bear any number of calls: an in-place sum of other data would overflow."""
        if self.cell.op == "all_reduce":
            self.output.copy_(torch.zeros(self.output.numel()))

    def is_correct(self) -> bool:
        """Whether the output holds what the operation promises, element by element."""
        offset = 0
        for part in self.layout.parts:
            if not _holds(self.output[offset : offset + part.count], part):
                return False
            offset += part.count
        return True


def pattern(rank: int, start: int, count: int) -> torch.Tensor:
    """Elements ``start … start + count`` of ``rank``'s input: whole numbers from 1 to 1021.

    Returns:
        float32, shape ``(count,)``.
    """
    first = (start + rank * _RANK_STEP) % _PERIOD
    period = torch.arange(first, first + _PERIOD).remainder_(_PERIOD).add_(1).float()
    return period.repeat(-(-count // _PERIOD))[:count].contiguous()


def _holds(output: torch.Tensor, part: Part) -> bool:
    # In chunks: the check of a large cell must not need more memory than the cell.
    for offset in range(0, part.count, _CHECK_CHUNK):
        found = output[offset : offset + _CHECK_CHUNK].cpu()
        expected = torch.zeros(found.numel())
        for source in part.sources:
            expected += pattern(source, part.start + offset, found.numel())
        if not torch.equal(found, expected):
            return False
    return True
