"""The five priorities, and how to set one for the eager calls of a thread."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum


class Priority(IntEnum):
    """How urgent a collective is. Smaller is more urgent, as for CUDA streams."""

    URGENT = -2
    HIGH = -1
    NORMAL = 0
    LOW = 1
    BACKGROUND = 2


def as_priority(value: int) -> Priority:
    """Checks a priority given by the user.

    Args:
        value: A :class:`Priority` or its number, -2 to 2.

    Returns:
        The member of :class:`Priority`.

    Raises:
        TypeError: ``value`` is no integer.
        ValueError: No priority has this number.
    """
    # bool is an int to Python, but priority=True is a mistake, not LOW.
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"priority must be a freescale_pg.Priority, got {value!r}")
    try:
        return Priority(value)
    except ValueError:
        known = ", ".join(f"{member.name}={member.value}" for member in Priority)
        raise ValueError(f"priority {int(value)} does not exist; there are {known}") from None


@contextmanager
def priority(value: int) -> Iterator[None]:
    """Gives a priority to the collectives that this thread calls in the block.

    It takes precedence over the group's own priority, and an inner block over an outer one. Other
    threads do not see it, among them the one that runs the backward pass of CUDA tensors, and
    ``torch.compile`` does not trace it: there, use :mod:`freescale_pg.functional` or
    :class:`freescale_pg.Options`.

    Args:
        value: A :class:`Priority` or its number.

    Raises:
        TypeError: ``value`` is no integer.
        ValueError: No priority has this number.
    """
    chosen = as_priority(value)
    from freescale_pg._extension import _C

    previous = _C.set_thread_priority(chosen)
    try:
        yield
    finally:
        _C.set_thread_priority(previous)
