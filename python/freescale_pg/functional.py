"""Collectives that return a new tensor, for autograd and ``torch.compile(fullgraph=True)``.

The priority is an argument of the operator itself, so that the backward pass and compiled graphs
keep it, on whatever thread they run. The result is complete when the call returns. Any process
group is served; on one of another backend the priority has no effect.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _resolve_process_group

from freescale_pg._priority import Priority, as_priority
from freescale_pg.operators import gather_rows, scatter_row_sums, with_priority

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import GroupName

__all__ = ["all_gather_single", "all_to_all_single", "reduce_scatter_single"]

Group = dist.ProcessGroup | str | None


def all_to_all_single(
    input: torch.Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    *,
    group: Group = None,
    priority: int | None = None,
) -> torch.Tensor:
    """Sends one piece of ``input`` to every rank and returns the pieces that all sent here.

    The gradient travels back the same way, at the same priority.

    Args:
        input: Cut along dimension 0 into one piece per rank.
        output_split_sizes: Rows that come from each rank; None: equal shares.
        input_split_sizes: Rows that go to each rank; None: equal shares.
        group: The group or its name; None: the default group.
        priority: A :class:`~freescale_pg.Priority`; None: the thread's or the group's.

    Returns:
        The pieces in rank order, (sum of ``output_split_sizes``, …), or as ``input`` without it.

    Raises:
        TypeError: ``priority`` is no integer.
        ValueError: No such priority, or ``input`` has no dimension to cut.
        RuntimeError: The splits do not fit, here or between the ranks; a rank is lost; or the
            group's timeout has passed.
    """
    _check_has_rows(input, "all_to_all_single")
    return _all_to_all_single(
        input, output_split_sizes, input_split_sizes, _name_of(group), _number_of(priority)
    )


def all_gather_single(
    input: torch.Tensor, *, group: Group = None, priority: int | None = None
) -> torch.Tensor:
    """Returns the ``input`` of all ranks, concatenated along dimension 0.

    The gradient is summed over the ranks and scattered, at the same priority.

    Args:
        input: (n, …), the same shape on every rank.
        group: The group or its name; None: the default group.
        priority: A :class:`~freescale_pg.Priority`; None: the thread's or the group's.

    Returns:
        (W · n, …) for W ranks.

    Raises:
        TypeError: ``priority`` is no integer.
        ValueError: No such priority, or ``input`` has no dimension to concatenate.
        RuntimeError: The ranks disagree, a rank is lost, or the group's timeout has passed.
    """
    _check_has_rows(input, "all_gather_single")
    return _all_gather_single(input, _name_of(group), _number_of(priority))


def reduce_scatter_single(
    input: torch.Tensor, *, group: Group = None, priority: int | None = None
) -> torch.Tensor:
    """Adds up the ``input`` of all ranks and returns this rank's share of the rows.

    The gradient is gathered from all ranks, at the same priority.

    Args:
        input: (W · n, …) for W ranks, the same shape on every rank.
        group: The group or its name; None: the default group.
        priority: A :class:`~freescale_pg.Priority`; None: the thread's or the group's.

    Returns:
        (n, …): rows r · n to (r + 1) · n of the sum, on rank r.

    Raises:
        TypeError: ``priority`` is no integer.
        ValueError: No such priority, or the rows cannot be shared equally.
        RuntimeError: The ranks disagree, a rank is lost, or the group's timeout has passed.
    """
    _check_has_rows(input, "reduce_scatter_single")
    return _reduce_scatter_single(input, _name_of(group), _number_of(priority))


def _name_of(group: Group) -> str:
    """The name under which torch finds the group again: operators take no Python objects."""
    if isinstance(group, str):
        return group
    chosen = dist.group.WORLD if group is None else group
    if chosen is None:
        raise ValueError("there is no default group: call torch.distributed.init_process_group")
    return cast("str", chosen.group_name)


def _group_named(name: str) -> dist.ProcessGroup:
    return _resolve_process_group(cast("GroupName", name))


def _number_of(priority: int | None) -> int | None:
    # A member as it is: torch 2.11's compiler cannot trace that one is made.
    if priority is None or isinstance(priority, Priority):
        return priority if priority is None else int(priority)
    return int(as_priority(priority))


def _check_has_rows(input: torch.Tensor, op: str) -> None:
    if input.dim() == 0:
        raise ValueError(f"{op}: the input must have at least one dimension, got a scalar")


def _rows_per_rank(input: torch.Tensor, size: int) -> int:
    rows = input.shape[0]
    if rows % size != 0:
        raise ValueError(
            f"reduce_scatter_single: {rows} rows cannot be shared equally by {size} ranks"
        )
    return rows // size


def _as_list(splits: Sequence[int] | None) -> list[int] | None:
    return None if splits is None else list(splits)


# The operators. Their schemas are spelled out: splits may be symbolic while torch.compile traces.

_EXCHANGE = (
    "(Tensor input, SymInt[]? output_split_sizes, SymInt[]? input_split_sizes, str group_name,"
    " int? priority) -> Tensor"
)
_GATHER = "(Tensor input, str group_name, int? priority) -> Tensor"


def _exchange(
    input: torch.Tensor,
    output_split_sizes: Sequence[int] | None,
    input_split_sizes: Sequence[int] | None,
    group_name: str,
    priority: int | None,
) -> torch.Tensor:
    group = _group_named(group_name)
    output = _exchange_shape(input, output_split_sizes, input_split_sizes, group_name, priority)
    with_priority(
        priority,
        lambda: dist.all_to_all_single(
            output,
            input.contiguous(),
            _as_list(output_split_sizes),
            _as_list(input_split_sizes),
            group=group,
        ),
    )
    return output


def _exchange_shape(
    input: torch.Tensor,
    output_split_sizes: Sequence[int] | None,
    input_split_sizes: Sequence[int] | None,
    group_name: str,
    priority: int | None,
) -> torch.Tensor:
    rows = input.shape[0] if output_split_sizes is None else sum(output_split_sizes)
    return input.new_empty((rows, *input.shape[1:]))


def _save_exchange(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    _, ctx.output_split_sizes, ctx.input_split_sizes, ctx.group_name, ctx.priority = inputs


def _exchange_gradient(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    back = _all_to_all_single(
        gradient, ctx.input_split_sizes, ctx.output_split_sizes, ctx.group_name, ctx.priority
    )
    return back, None, None, None, None


def _gather(input: torch.Tensor, group_name: str, priority: int | None) -> torch.Tensor:
    group = _group_named(group_name)
    output = _gather_shape(input, group_name, priority)
    with_priority(priority, lambda: gather_rows(output, input.contiguous(), group=group))
    return output


def _gather_shape(input: torch.Tensor, group_name: str, priority: int | None) -> torch.Tensor:
    size = _group_named(group_name).size()
    return input.new_empty((size * input.shape[0], *input.shape[1:]))


def _scatter_sum(input: torch.Tensor, group_name: str, priority: int | None) -> torch.Tensor:
    group = _group_named(group_name)
    output = _scatter_sum_shape(input, group_name, priority)
    with_priority(priority, lambda: scatter_row_sums(output, input.contiguous(), group=group))
    return output


def _scatter_sum_shape(input: torch.Tensor, group_name: str, priority: int | None) -> torch.Tensor:
    size = _group_named(group_name).size()
    return input.new_empty((_rows_per_rank(input, size), *input.shape[1:]))


def _save_gather(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    _, ctx.group_name, ctx.priority = inputs


def _gather_gradient(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    return _reduce_scatter_single(gradient, ctx.group_name, ctx.priority), None, None


def _scatter_sum_gradient(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    return _all_gather_single(gradient, ctx.group_name, ctx.priority), None, None


def _define(
    name: str,
    schema: str,
    run: Callable[..., torch.Tensor],
    shape: Callable[..., torch.Tensor],
    save: Callable[..., None],
    gradient: Callable[..., tuple[torch.Tensor | None, ...]],
) -> Callable[..., torch.Tensor]:
    """Registers ``freescale::<name>`` with its shape rule for tracing and its gradient."""
    operator = torch.library.custom_op(f"freescale::{name}", run, mutates_args=(), schema=schema)
    operator.register_fake(shape)
    operator.register_autograd(gradient, setup_context=save)
    return cast("Callable[..., torch.Tensor]", operator)


_all_to_all_single = _define(
    "all_to_all_single", _EXCHANGE, _exchange, _exchange_shape, _save_exchange, _exchange_gradient
)
_all_gather_single = _define(
    "all_gather_single", _GATHER, _gather, _gather_shape, _save_gather, _gather_gradient
)
_reduce_scatter_single = _define(
    "reduce_scatter_single",
    _GATHER,
    _scatter_sum,
    _scatter_sum_shape,
    _save_gather,
    _scatter_sum_gradient,
)
