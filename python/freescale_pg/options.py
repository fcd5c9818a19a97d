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

    Raises:
        TypeError: An argument has the wrong type, or there is no option of that name.
        ValueError: No such priority, or ``aging`` is not positive.

    Example:
        >>> urgent = Options(priority=Priority.URGENT)
        >>> lookups = dist.new_group(backend="freescale", pg_options=urgent)
    """

    def __init__(self, *, priority: int = Priority.NORMAL, aging: timedelta | None = None) -> None:
        chosen = as_priority(priority)
        if aging is None:
            super().__init__(priority=chosen)
            return
        if not isinstance(aging, timedelta):
            raise TypeError(f"aging must be a datetime.timedelta, got {aging!r}")
        if aging <= timedelta(0):
            raise ValueError(f"aging must be longer than zero, got {aging}")
        super().__init__(priority=chosen, aging=aging)

    def __reduce__(self) -> tuple[Callable[..., "Options"], tuple[int, timedelta | None]]:
        """What pickle keeps: for groups that are made in other processes."""
        return _remade, (int(self.priority), self.aging)

    def __repr__(self) -> str:
        """For example ``Options(priority=Priority.URGENT, aging=None)``."""
        priority = as_priority(self.priority)
        return f"Options(priority=Priority.{priority.name}, aging={self.aging!r})"


def _remade(priority: int, aging: timedelta | None) -> Options:
    return Options(priority=priority, aging=aging)
