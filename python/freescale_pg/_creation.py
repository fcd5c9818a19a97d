"""Makes the backend of one process group: what torch calls for ``backend="freescale"``."""

import copy
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, cast

from freescale_pg._extension import _C

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Backend, _DistributedBackendOptions
    from torch.distributed import Store
    from torch.distributed.distributed_c10d import GroupName


def create_backend(request: "_DistributedBackendOptions", options: object) -> _C.Backend:
    """Connects this process to the other members of a new group.

    Args:
        request: What torch knows of the group: store, rank, size, timeout, name and global ranks.
        options: ``pg_options`` of the user's call, or None. It is copied, as one object may serve
            several groups.

    Returns:
        The connected backend.

    Raises:
        TypeError: ``options`` are another backend's.
    """
    if options is None:
        settings = _C.Options()
    elif isinstance(options, _C.Options):
        settings = copy.copy(options)
    else:
        raise TypeError(
            f"pg_options of a freescale group must be freescale_pg.Options, got {options!r}"
        )
    settings._timeout = request.timeout
    settings.group_name = cast("GroupName", request.group_id)
    settings.global_ranks_in_group = request.global_ranks_in_group
    return _C.Backend(request.store, request.group_rank, request.group_size, settings)


def _make_device_reducer(
    store: "Store", rank: int, size: int, options: _C.Options
) -> "Backend | None":
    """Makes the NCCL backend that combines a group's CUDA tensors; None where exchanges do.

    It connects to nobody before it is first used.

    Raises:
        ValueError: The options ask for NCCL, and this torch or this machine has none.
    """
    import torch
    from torch.distributed import PrefixStore, is_nccl_available

    if options.reductions == "exchange":
        return None
    if not (torch.cuda.is_available() and is_nccl_available()):
        if options.reductions == "nccl":
            lack = "NCCL" if torch.cuda.is_available() else "usable CUDA device"
            raise ValueError(f"rank {rank}: Options(reductions='nccl'), but torch finds no {lack}")
        return None
    from torch.distributed import ProcessGroupNCCL

    settings = ProcessGroupNCCL.Options()
    settings._timeout = options._timeout
    settings.group_name = options.group_name
    settings.global_ranks_in_group = options.global_ranks_in_group
    return ProcessGroupNCCL(PrefixStore("nccl", store), rank, size, settings)


def _ucx_candidates() -> list[str]:
    """Paths of the UCX libraries that Python packages brought, with the one to prefer first.

    nixl's has RDMA; that of the libucx wheels (``freescale_pg[ucx]``) has not. Neither is imported.
    """
    found: list[Path] = []
    for package in ("nixl_cu12", "nixl_cu13"):
        for folder in _folders_of(package):
            found += sorted((folder.parent / f"{package}.libs").glob("libucp-*.so*"))
    for folder in _folders_of("libucx"):
        found += folder.glob("lib/libucp.so.0")
    return [str(path) for path in found]


def _folders_of(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    places = spec.submodule_search_locations if spec is not None else None
    return [Path(place) for place in places or []]


_C._set_device_reducer_factory(_make_device_reducer)
_C._set_ucx_candidates(_ucx_candidates())
