"""How many kernels exchanges launch: none, for contiguous tensors."""

from __future__ import annotations

import torch
import torch.distributed as dist

from freescale_pg.operators import gather_rows
from gpu_check.ranks.setting import Setting
from gpu_check.ranks.trace import Trace

_CALLS = 10


class _Exchange:
    """Ragged exchanges of contiguous tensors, all of whose memory is there before."""

    def __init__(self, setting: Setting) -> None:
        unit = self.unit = 1000 if setting.short else 1_000_000
        rank, size = setting.rank, setting.size
        self.sends = [unit * (1 + (rank + 2 * other) % 3) for other in range(size)]
        self.receives = [unit * (1 + (other + 2 * rank) % 3) for other in range(size)]
        self.input = torch.ones(sum(self.sends), device=setting.device)
        self.output = torch.empty(sum(self.receives), device=setting.device)
        self.gathered = torch.empty(size * unit, device=setting.device)

    def run(self) -> None:
        for _ in range(_CALLS):
            dist.all_to_all_single(self.output, self.input, self.receives, self.sends)
            gather_rows(self.gathered, self.input[: self.unit])
            dist.broadcast(self.output[:1000], 0)


def run(setting: Setting) -> None:
    """Tells what the profiler sees of ours, after it was seen to see kernels at all."""
    exchange = _Exchange(setting)
    exchange.run()
    trace = Trace(setting, exchange.run)
    seen = trace.calls_of("freescale:all_to_all_single")
    setting.expect("control: the profiler sees the calls", seen >= _CALLS)
    if not setting.on_gpu:
        setting.fact("kernels", "needs a GPU")
        return
    matrix = torch.ones(256, 256, device=setting.device)
    product = Trace(setting, lambda: matrix @ matrix)
    setting.expect("control: the profiler sees kernels", product.kernels() > 0)
    for kind, count in trace.on_device().items():
        setting.fact(f"events of {3 * _CALLS} exchanges on the device: {kind}", count)
    setting.expect("exchanges launch no kernel", trace.kernels() == 0)
