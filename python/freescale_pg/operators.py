"""Collectives of torch.distributed with a ``priority=`` argument, in place and for eager code.

They take any process group. On one of another backend the priority has no effect, so that the same
program runs on both for comparison.
"""

from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist

from freescale_pg._priority import as_priority

ResultT = TypeVar("ResultT")

# Newer versions of torch rename these two, and warn of the old names.
gather_rows = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
scatter_row_sums = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    *,
    group: dist.ProcessGroup | None = None,
    priority: int | None = None,
    async_op: bool = False,
) -> dist.Work | None:
    """Sends one piece of ``input`` to every rank and gathers the pieces from all in ``output``.

    Args:
        output: Receives the pieces in rank order. Same dtype as ``input``.
        input: Cut along dimension 0 into one piece per rank.
        output_split_sizes: Rows that come from each rank; None: equal shares.
        input_split_sizes: Rows that go to each rank; None: equal shares.
        group: None: the default group.
        priority: A :class:`~freescale_pg.Priority`; None: the thread's or the group's.
        async_op: Return at once, with a handle to wait for.

    Returns:
        The handle if ``async_op``, otherwise None, as is also returned outside the group.

    Raises:
        TypeError: ``priority`` is no integer.
        ValueError: No such priority.
        RuntimeError: The arguments do not fit, here or between the ranks; a rank is lost; or the
            group's timeout has passed.
    """
    work: dist.Work | None = with_priority(
        priority,
        lambda: dist.all_to_all_single(
            output, input, output_split_sizes, input_split_sizes, group=group, async_op=async_op
        ),
    )
    return work


def all_gather_into_tensor(
    output: torch.Tensor,
    input: torch.Tensor,
    *,
    group: dist.ProcessGroup | None = None,
    priority: int | None = None,
    async_op: bool = False,
) -> dist.Work | None:
    """Gathers the ``input`` of all ranks, in rank order, in every rank's ``output``.

    Args:
        output: (W · n, …) or (W, n, …) for W ranks. Same dtype as ``input``.
        input: (n, …), the same shape on every rank.
        group: None: the default group.
        priority: A :class:`~freescale_pg.Priority`; None: the thread's or the group's.
        async_op: Return at once, with a handle to wait for.

    Returns:
        The handle if ``async_op``, otherwise None, as is also returned outside the group.

    Raises:
        TypeError: ``priority`` is no integer.
        ValueError: No such priority.
        RuntimeError: The arguments do not fit, here or between the ranks; a rank is lost; or the
            group's timeout has passed.
    """
    work: dist.Work | None = with_priority(
        priority,
        lambda: gather_rows(output, input, group=group, async_op=async_op),
    )
    return work


def with_priority(priority: int | None, collective: Callable[[], ResultT]) -> ResultT:
    """Calls ``collective`` with the thread's priority set, and restores it before returning.

    The backend reads the priority when an operation is issued: asynchronous ones keep it.
    """
    if priority is None:
        return collective()
    chosen = as_priority(priority)
    from freescale_pg._extension import _C

    previous = _C.set_thread_priority(chosen)
    try:
        return collective()
    finally:
        _C.set_thread_priority(previous)
