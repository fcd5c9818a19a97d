"""Which device a rank trains on, and what its process group has to know of that."""

import os

import torch

import freescale_pg as fs


def own_device(kind: str) -> torch.device:
    """Returns this rank's device, after making it the current one.

    Args:
        kind: ``"cpu"`` or ``"cuda"``: the ranks of a host take its GPUs in turn.
    """
    if kind == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", _local("RANK", 0) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def group_options(backend: str, device: torch.device) -> fs.Options | None:
    """Returns the options of the default group.

    Where ranks share a GPU, sums of gradients must be exchanges: NCCL refuses two ranks on one.
    """
    if backend != "freescale" or device.type != "cuda":
        return None
    if _local("WORLD_SIZE", 1) <= torch.cuda.device_count():
        return None
    return fs.Options(reductions="exchange")


def _local(name: str, alone: int) -> int:
    """What torchrun says of the ranks on this host."""
    return int(os.environ.get(f"LOCAL_{name}", alone))
