"""How a block of code has ended on all ranks, where a rank that failed must not wait for others."""

from collections.abc import Sequence
from contextlib import suppress

import torch
import torch.distributed as dist

# What failed ranks have said: gloo takes a message back whose work is dropped.
_said: list[dist.Work] = []


def ends_well_everywhere(group: dist.ProcessGroup, well: bool, *, tag: int) -> bool:
    """Whether a block has ended without an error on all ranks, each of which calls this once.

    A rank whose own block has failed says so, and waits for nobody. The others wait until they know
    of all; a rank that is lost has not ended well.

    Args:
        group: Of a backend that takes CPU tensors.
        well: Whether this rank's block has.
        tag: Of the messages; of no others of the group.
    """
    others = range(1, group.size()) if group.rank() == 0 else range(1)
    if not well:
        with suppress(RuntimeError):
            _said.extend(_say(group, rank, False, tag) for rank in others)
        return False
    if group.rank() == 0:
        return _ask_all(group, others, tag)
    with suppress(RuntimeError):
        said = _say(group, 0, True, tag)
        if _hear(group, 0, tag):
            said.wait()  # not before: a first rank that has failed does not ask
            return True
    return False


def _ask_all(group: dist.ProcessGroup, others: Sequence[int], tag: int) -> bool:
    heard = [_hear(group, rank, tag) for rank in others]
    # Who has failed does not listen.
    for rank in (rank for rank, well in zip(others, heard, strict=True) if well):
        with suppress(RuntimeError):
            _say(group, rank, all(heard), tag).wait()
    return all(heard)


def _say(group: dist.ProcessGroup, rank: int, well: bool, tag: int) -> dist.Work:
    return group.send([torch.tensor([int(well)])], rank, tag)


def _hear(group: dist.ProcessGroup, rank: int, tag: int) -> bool:
    box = torch.zeros(1, dtype=torch.int64)
    with suppress(RuntimeError):
        group.recv([box], rank, tag).wait()
    return bool(box.item())
