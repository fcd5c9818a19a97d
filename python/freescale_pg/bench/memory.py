"""How much memory a rank may take."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

from freescale_pg.bench.devices import CPU
from freescale_pg.bench.ranks import Ranks

# Other programs need memory too, and a machine that swaps measures its disk.
_SHARE = 0.6


def memory_of_a_rank(ranks: Ranks, device: torch.device = CPU) -> float:
    """Bytes that each rank may take, of the host or device that has least. A collective call.

    Args:
        ranks: The run.
        device: Whose memory is meant; that of the CPU is the host's.
    """
    if device.type == "cuda":
        sharing = -(-ranks.local_size // torch.cuda.device_count())
        own = torch.cuda.mem_get_info(device)[0] / sharing
    else:
        own = _available() / ranks.local_size
    least = torch.tensor([_SHARE * own], dtype=torch.float64)
    dist.all_reduce(least, dist.ReduceOp.MIN)
    return float(least.item())


def check_memory(need: int, ranks: Ranks, device: torch.device = CPU) -> None:
    """Refuses what does not fit into the memory of the host, or of a device. A collective call.

    Args:
        need: Bytes of each rank.
        ranks: The run.
        device: Whose memory is meant; that of the CPU is the host's.

    Raises:
        ValueError: There is less, on every rank.
    """
    spare = memory_of_a_rank(ranks, device)
    if need > spare:
        raise ValueError(
            f"a rank needs {need / 1e9:.1f} GB of memory and may take {spare / 1e9:.1f}"
        )


def _available() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(line for line in lines if line.startswith("MemAvailable:"))
    return int(available.split()[1]) * 1024
