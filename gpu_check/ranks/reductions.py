"""Whether reductions give the right values."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from freescale_pg.operators import scatter_row_sums
from gpu_check.ranks.setting import Setting

Pair = tuple[torch.Tensor, torch.Tensor]


def _sent(rank: int, elements: int) -> torch.Tensor:
    """Whole numbers, whose sums are exact in single precision in any order."""
    return (torch.arange(elements) * 7 + rank * 31) % 64 + torch.zeros(elements)


def _everyones(setting: Setting, elements: int) -> torch.Tensor:
    return torch.stack([_sent(rank, elements) for rank in range(setting.size)])


def _all_reduce_sum(setting: Setting, elements: int) -> Pair:
    tensor = _sent(setting.rank, elements).to(setting.device)
    dist.all_reduce(tensor)
    return tensor, _everyones(setting, elements).sum(0)


def _all_reduce_max(setting: Setting, elements: int) -> Pair:
    tensor = _sent(setting.rank, elements).to(setting.device)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tensor, _everyones(setting, elements).amax(0)


def _reduce(setting: Setting, elements: int) -> Pair:
    tensor = _sent(setting.rank, elements).to(setting.device)
    dist.reduce(tensor, dst=0)
    # Elsewhere the tensor's values are not defined.
    expected = _everyones(setting, elements).sum(0) if setting.rank == 0 else tensor.cpu()
    return tensor, expected


def _reduce_scatter(setting: Setting, elements: int) -> Pair:
    source = _sent(setting.rank, elements * setting.size).to(setting.device)
    output = torch.full((elements,), -1.0, device=setting.device)
    scatter_row_sums(output, source)
    sums = _everyones(setting, elements * setting.size).sum(0)
    return output, sums.chunk(setting.size)[setting.rank]


_CASES: dict[str, Callable[[Setting, int], Pair]] = {
    "all_reduce, sum": _all_reduce_sum,
    "all_reduce, maximum": _all_reduce_max,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
}


def run(setting: Setting) -> None:
    """Tells for each reduction whether it is right."""
    for name, case in _CASES.items():
        pairs = [case(setting, elements) for elements in (3, 100_000)]
        right = all(torch.equal(given.cpu(), expected) for given, expected in pairs)
        setting.expect(f"{name} is right", right)
