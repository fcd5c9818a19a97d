"""Which process group a user means."""

import torch.distributed as dist


def member_group(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Returns the group, or the default one.

    Raises:
        ValueError: There is no process group, or this rank is not in it.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise ValueError("there is no process group: call torch.distributed.init_process_group")
    chosen = dist.group.WORLD if group is None else group
    if not isinstance(chosen, dist.ProcessGroup):
        raise ValueError(f"group must be a process group with this rank in it, got {chosen!r}")
    return chosen
