"""Makes the backend of one process group: what torch calls for ``backend="freescale"``."""

import copy
from typing import TYPE_CHECKING, cast

from freescale_pg._extension import _C

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Backend, _DistributedBackendOptions
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
    backend = _C.Backend(request.store, request.group_rank, request.group_size, settings)
    reducer = _nccl_backend(request)
    if reducer is not None:
        backend._set_device_reducer(reducer)
    return backend


def _nccl_backend(request: "_DistributedBackendOptions") -> "Backend | None":
    """Makes the NCCL backend that combines CUDA tensors; None where torch or the machine has none.

    It connects to nobody before it is first used.
    """
    import torch
    from torch.distributed import PrefixStore, is_nccl_available

    if not (torch.cuda.is_available() and is_nccl_available()):
        return None
    from torch.distributed import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = request.timeout
    options.group_name = cast("GroupName", request.group_id)
    options.global_ranks_in_group = request.global_ranks_in_group
    store = PrefixStore("nccl", request.store)
    return ProcessGroupNCCL(store, request.group_rank, request.group_size, options)
