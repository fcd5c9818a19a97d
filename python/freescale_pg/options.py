"""Settings of a process group."""

from collections.abc import Callable
from datetime import timedelta

from freescale_pg._extension import _C
from freescale_pg._priority import Priority, as_priority


class Options(_C.Options):
    """Settings of one group, for ``pg_options=`` of ``init_process_group`` and ``new_group``.

    The timeout is not among them: torch takes it from the ``timeout=`` of the same call.

    Args:
        priority: Of every collective of the group for which no other is given by
            :func:`freescale_pg.priority` or a ``priority=`` argument.
        aging: An operation that waits this long climbs one level. It belongs to the process, not
            to the group: all groups that give it must give the same. None: the process's value,
            100 ms unless ``FREESCALE_AGING_MS`` says otherwise.
        reductions: Who combines CUDA tensors. ``"nccl"``: an inner ProcessGroupNCCL, with its
            kernels and without priorities. ``"exchange"``: one exchange by copy engines, then
            ATen's kernels in rank order, so that all ranks and runs get the same bits; every rank
            receives all it combines, which costs memory and bytes (see ``docs/cuda.md``). None:
            NCCL where torch has it. CPU tensors are always combined by exchanges.
        eager: Whether the members are connected when the group is made. Else by the first call that
            each of them makes on it, of whichever kind, which waits until all have made one; a
            group that nobody uses costs no connections then, and errors of connecting come later.
            All members must give the same.

    Raises:
        TypeError: An argument has the wrong type, or there is no option of that name.
        ValueError: No such priority or way of reductions, or ``aging`` is not positive.

    Example:
        >>> urgent = Options(priority=Priority.URGENT)
        >>> lookups = dist.new_group(backend="freescale", pg_options=urgent)
    """

    def __init__(
        self,
        *,
        priority: int = Priority.NORMAL,
        aging: timedelta | None = None,
        reductions: str | None = None,
        eager: bool = True,
    ) -> None:
        chosen = as_priority(priority)
        if aging is not None:
            _check_aging(aging)
        if reductions not in (None, "nccl", "exchange"):
            raise ValueError(f"reductions must be 'nccl', 'exchange' or None, got {reductions!r}")
        if not isinstance(eager, bool):
            raise TypeError(f"eager must be a bool, got {eager!r}")
        super().__init__(priority=chosen, aging=aging, reductions=reductions, eager=eager)

    def __reduce__(self) -> tuple[Callable[..., "Options"], tuple[object, ...]]:
        """What pickle keeps: for groups that are made in other processes."""
        return _remade, (int(self.priority), self.aging, self.reductions, self.eager)

    def __repr__(self) -> str:
        """``Options(priority=Priority.URGENT, aging=None, reductions=None, eager=True)``."""
        priority = as_priority(self.priority)
        return (
            f"Options(priority=Priority.{priority.name}, aging={self.aging!r},"
            f" reductions={self.reductions!r}, eager={self.eager})"
        )


def _check_aging(aging: timedelta) -> None:
    if not isinstance(aging, timedelta):
        raise TypeError(f"aging must be a datetime.timedelta, got {aging!r}")
    if aging <= timedelta(0):
        raise ValueError(f"aging must be longer than zero, got {aging}")


def _remade(priority: int, aging: timedelta | None, reductions: str | None, eager: bool) -> Options:
    return Options(priority=priority, aging=aging, reductions=reductions, eager=eager)
