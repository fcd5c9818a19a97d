"""Doing what may fail on some ranks, so that all of them know of it and go on together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch.distributed as dist


class WrongResultError(RuntimeError):
    """A call returned, and its output is not what the operation promises."""


@dataclass(frozen=True)
class Failure:
    """What went wrong, the same on all ranks.

    Attributes:
        message: What it was, on the lowest rank where something was.
        is_out_of_step: Some ranks raised and others did not, so that a later call of the same
            contestant may be met by another call.
    """

    message: str
    is_out_of_step: bool


def attempt(action: Callable[[], object]) -> Failure | None:
    """Carries out an action. A collective call, from which no rank returns before all are done.

    Returns:
        None if it went well on all ranks.
    """
    message = ""
    raised = False
    try:
        action()
    except WrongResultError as error:
        message = str(error)
    except Exception as error:
        raised = True
        # Backends append stacks of C++ frames.
        message = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    outcomes: list[tuple[str, bool]] = [("", False)] * dist.get_world_size()
    dist.all_gather_object(outcomes, (message, raised))
    failed = {rank: text for rank, (text, _) in enumerate(outcomes) if text}
    if not failed:
        return None
    first = min(failed)
    return Failure(f"rank {first}: {failed[first]}", len({raised for _, raised in outcomes}) > 1)
