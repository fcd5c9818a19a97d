"""Notes of a rank's exchanges: when each was asked for, and for how long the rank waited for it."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest.mock import patch

import torch.distributed as dist

from freescale_pg.bench.clocks import Clock
from freescale_pg.embedding import exchange
from freescale_pg.embedding.background import Background


class Key(NamedTuple):
    """Names an exchange, alike on all of its ranks.

    Attributes:
        group: Name of its process group.
        number: Of the exchange, among those of the group.
    """

    group: str
    number: int


@dataclass(frozen=True)
class Wait:
    """When the thread of the training waited, or its stream; seconds of the monotonic clock.

    Attributes:
        key: For which exchange; None: for the thread beside the training.
        begin: Since when.
        end: Until when.
    """

    key: Key | None
    begin: float
    end: float


class NotedWork:
    """An exchange that is under way."""

    def __init__(self, key: Key, work: dist.Work, notes: ExchangeNotes) -> None:
        self._key, self._work, self._notes = key, work, notes

    def wait(self) -> None:
        """Waits for its end, and notes that."""
        with self._notes.waiting(self._key):
            self._work.wait()
        self._notes.forget(self)

    def is_over(self) -> bool:
        """Returns whether its end has come; does not wait."""
        return self._work.is_completed()


class ExchangeNotes:
    """What one training asks its group's ranks for, from any thread.

    The host's clock is the same in all processes of a machine, so notes of its ranks can be
    compared.

    Args:
        clock: Times the waits.

    Attributes:
        asked: When each exchange was asked for.
        waits: That held up what the clock is that of.
        came: Set when an exchange begins; whoever waits for that clears it.
    """

    def __init__(self, clock: Clock) -> None:
        self.asked: dict[Key, float] = {}
        self.waits: list[Wait] = []
        self.came = threading.Event()
        self._clock = clock
        self._counts: dict[str, int] = defaultdict(int)
        self._lock = threading.Lock()  # guards the next one
        self._under_way: set[NotedWork] = set()

    def begin(self, group: dist.ProcessGroup, start: Callable[[], dist.Work | None]) -> NotedWork:
        """Starts an exchange of the group; no two threads use the same group at once."""
        name = group.group_name
        key = Key(name, self._counts[name])
        self._counts[name] += 1
        self.asked[key] = time.monotonic()
        work = start()
        assert work is not None
        noted = NotedWork(key, work, self)
        with self._lock:
            self._under_way.add(noted)
        self.came.set()
        return noted

    def forget(self, work: NotedWork) -> None:
        """Drops one that is over."""
        with self._lock:
            self._under_way.discard(work)

    def any_under_way(self) -> bool:
        """Returns whether an exchange that this rank has asked for is not over."""
        with self._lock:
            self._under_way = {work for work in self._under_way if not work.is_over()}
            return bool(self._under_way)

    def waiting(self, key: Key | None) -> AbstractContextManager[None]:
        """Notes the time of the block."""
        return self._clock.timing(lambda begin, end: self.waits.append(Wait(key, begin, end)))

    @contextmanager
    def of_embeddings(self, all_to_all: Callable[..., dist.Work | None]) -> Iterator[None]:
        """Lets the exchanges of sharded embeddings be noted; ``all_to_all`` makes them."""
        join = Background.join

        def noted_exchange(*arguments: Any, group: dist.ProcessGroup, **named: Any) -> NotedWork:
            return self.begin(group, lambda: all_to_all(*arguments, group=group, **named))

        def noted_join(of: Background) -> None:
            with self.waiting(None):
                join(of)

        with (
            patch.object(exchange, "all_to_all_single", noted_exchange),
            patch.object(Background, "join", noted_join),
        ):
            yield

    def clear(self) -> None:
        """Forgets when exchanges were asked and waited for, but not those under way."""
        self.asked.clear()
        self.waits.clear()
