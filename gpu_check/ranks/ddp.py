"""Whether DistributedDataParallel gives the gradients that one process would."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gpu_check.ranks.setting import Setting

_STEPS = 3
_WIDTH, _BATCH = 64, 16


def _model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(_WIDTH, 4 * _WIDTH), nn.ReLU(), nn.Linear(4 * _WIDTH, 1))


def _batch(rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(_BATCH, _WIDTH, generator=generator)


def _train(model: nn.Module, parameters: nn.Module, batches: list[torch.Tensor]) -> None:
    optimizer = torch.optim.SGD(parameters.parameters(), lr=0.1)
    for batch in batches:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


def run(setting: Setting) -> None:
    """Tells whether the parameters after some steps are those of one process with all batches."""
    shared = _model().to(setting.device)
    ranks_own = [_batch(setting.rank, step).to(setting.device) for step in range(_STEPS)]
    device_ids = [setting.device] if setting.on_gpu else None
    _train(DistributedDataParallel(shared, device_ids=device_ids), shared, ranks_own)

    alone = _model().to(setting.device)
    everyones = [
        torch.cat([_batch(rank, step) for rank in range(setting.size)]).to(setting.device)
        for step in range(_STEPS)
    ]
    _train(alone, alone, everyones)
    pairs = zip(shared.parameters(), alone.parameters(), strict=True)
    # Sums in another order: single precision, so not equal.
    close = all(torch.allclose(ours, theirs, rtol=1e-3, atol=1e-5) for ours, theirs in pairs)
    setting.expect("parameters after training are those of one process", close)
