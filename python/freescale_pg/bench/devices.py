"""The devices of the ranks' tensors."""

from __future__ import annotations

import torch

from freescale_pg.bench.ranks import Ranks

CPU = torch.device("cpu")


def check_device(kind: str) -> None:
    """Refuses a device that is not here.

    Args:
        kind: "cpu" or "cuda".

    Raises:
        ValueError: It names what there is.
    """
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"--device cuda: torch {torch.__version__} finds no CUDA device here, only the CPU"
        )


def own_device(kind: str, ranks: Ranks) -> torch.device:
    """Returns this rank's device, which is current from then on."""
    if kind == "cpu":
        return CPU
    device = torch.device("cuda", ranks.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def shares_device(kind: str, local_size: int) -> bool:
    """Whether ranks of a host have the same CUDA device.

    Args:
        kind: "cpu" or "cuda".
        local_size: Ranks of the host.
    """
    return kind == "cuda" and local_size > torch.cuda.device_count()
