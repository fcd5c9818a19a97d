"""Whether reductions give the right values and, by exchange, the same bits everywhere."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from freescale_pg.operators import scatter_row_sums
from gpu_check.ranks.setting import Setting

Pair = tuple[torch.Tensor, torch.Tensor]

_SIZES = (3, 100_000)
_FACTOR = 0.25


def _sent(rank: int, elements: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Whole numbers whose sums, of 8 ranks, are exact in any order, also in half precision."""
    return ((torch.arange(elements) * 7 + rank * 31) % 32).to(dtype)


def _everyones(setting: Setting, elements: int) -> torch.Tensor:
    return torch.stack([_sent(rank, elements) for rank in range(setting.size)])


def _all_reduce_sum(setting: Setting, elements: int) -> Pair:
    tensor = _sent(setting.rank, elements).to(setting.device)
    dist.all_reduce(tensor)
    return tensor, _everyones(setting, elements).sum(0)


def _all_reduce_half(setting: Setting, elements: int) -> Pair:
    tensor = _sent(setting.rank, elements, torch.bfloat16).to(setting.device)
    dist.all_reduce(tensor)
    return tensor, _everyones(setting, elements).sum(0).bfloat16()


def _all_reduce_max(setting: Setting, elements: int) -> Pair:
    tensor = _sent(setting.rank, elements).to(setting.device)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tensor, _everyones(setting, elements).amax(0)


def _all_reduce_mean(setting: Setting, elements: int) -> Pair:
    # Multiples of the number of ranks: devices divide by way of the reciprocal, which rounds.
    tensor = (_sent(setting.rank, elements) * setting.size).to(setting.device)
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    return tensor.round(), _everyones(setting, elements).sum(0)


def _all_reduce_multiples(setting: Setting, elements: int) -> Pair:
    tensor = _sent(setting.rank, elements).to(setting.device)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(_FACTOR))
    return tensor, _everyones(setting, elements).sum(0) * _FACTOR


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
    "all_reduce, sum in bfloat16": _all_reduce_half,
    "all_reduce, maximum": _all_reduce_max,
    "all_reduce, mean": _all_reduce_mean,
    "all_reduce, sum of multiples": _all_reduce_multiples,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
}

# Of arbitrary numbers, whose sums are rounded.
_ROUNDED: dict[str, tuple[torch.dtype, dist.ReduceOp.RedOpType]] = {
    "sum in float32": (torch.float32, dist.ReduceOp.SUM),
    "sum in bfloat16": (torch.bfloat16, dist.ReduceOp.SUM),
    "mean in float32": (torch.float32, dist.ReduceOp.AVG),
}


def _arbitrary(rank: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(_SIZES[-1], generator=generator).to(dtype)


def _in_rank_order(setting: Setting, dtype: torch.dtype) -> torch.Tensor:
    """Half precision is added up in single precision, and rounded once."""
    total = _arbitrary(0, dtype).float()
    for rank in range(1, setting.size):
        total += _arbitrary(rank, dtype)
    return total.to(dtype)


def _judge_bits(setting: Setting) -> None:
    for name, (dtype, operation) in _ROUNDED.items():
        results = []
        for _ in range(2):
            tensor = _arbitrary(setting.rank, dtype).to(setting.device)
            dist.all_reduce(tensor, operation)
            results.append(tensor.cpu())
        everywhere = setting.is_same_everywhere(results[0])
        setting.expect(f"{name} has the same bits on all ranks", everywhere)
        setting.expect(f"{name} has the same bits twice", torch.equal(*results))
        if operation == dist.ReduceOp.SUM:
            ordered = torch.equal(results[0], _in_rank_order(setting, dtype))
            setting.expect(f"{name} has the bits of the CPU, rank by rank", ordered)


def run(setting: Setting) -> None:
    """Tells for each reduction whether it is right, and by exchange, whether its bits are."""
    for name, case in _CASES.items():
        pairs = [case(setting, elements) for elements in _SIZES]
        right = all(torch.equal(given.cpu(), expected) for given, expected in pairs)
        setting.expect(f"{name} is right", right)
    if not setting.by_nccl:
        _judge_bits(setting)
