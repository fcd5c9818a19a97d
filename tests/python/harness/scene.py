"""What fault tests have in common: one rank at fault, traffic around it, a restart afterwards.

The last rank is the one at fault. What processes still hold at their end is checked by the
launcher.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from harness.rank import open_store

# Floats for each peer: inline, and granted by the receiver.
SMALL, LARGE = 8, 100_000
# Seconds. The groups' timeout is far above the other two, so an error within WAKE_LIMIT came from
# the fault itself; a short one is for ranks that wait for nobody.
TIMEOUT, WAKE_LIMIT, SHORT = 60.0, 20.0, 2.0


@dataclass(frozen=True)
class Scene:
    """One rank of a test, and what it is about.

    Attributes:
        rank, size: Of the default group.
        store: For words between the ranks that do not go through the backend.
        round: One round of traffic on the default group.
    """

    rank: int
    size: int
    store: dist.Store
    round: Callable[[int], None]

    @property
    def at_fault(self) -> bool:
        return self.rank == self.size - 1

    def meet(self, name: str, size: int | None = None) -> None:
        """Waits for all ranks, or the first ``size``, by the store."""
        self.store.set(f"{name}/{self.rank}", "here")
        ranks = range(self.size if size is None else size)
        self.store.wait([f"{name}/{rank}" for rank in ranks], timedelta(seconds=WAKE_LIMIT))

    def note_time(self) -> None:
        """The fault happens now; the clock is the host's."""
        self.store.set("fault", str(time.monotonic()))

    def await_fault(self) -> None:
        self.store.wait(["fault"], timedelta(seconds=WAKE_LIMIT))

    def seconds_since_fault(self) -> float:
        return time.monotonic() - float(self.store.get("fault"))

    def expect_failure(self, reason: str) -> float:
        """Traffic until it fails because of the rank at fault; returns the seconds that took."""
        number = 0
        with pytest.raises(RuntimeError) as caught:
            while True:
                self.round(number)
                number += 1
        seconds = self.seconds_since_fault()
        assert seconds < WAKE_LIMIT
        assert re.search(reason, str(caught.value)), caught.value
        assert f"rank {self.size - 1}" in str(caught.value), caught.value
        return seconds


# --- Traffic --------------------------------------------------------------------------------------


def exchange(count: int, group: dist.ProcessGroup | None = None) -> None:
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    given = torch.arange(size, dtype=torch.float32).repeat_interleave(count) + 100 * rank
    got = torch.full_like(given, -1.0)
    dist.all_to_all_single(got, given, group=group)
    expected = 100 * torch.arange(size, dtype=torch.float32).repeat_interleave(count) + rank
    assert torch.equal(got, expected)


def small(_: int) -> None:
    exchange(SMALL)


def large(_: int) -> None:
    exchange(LARGE)


def in_flight(_: int) -> None:
    """Several at once, waited for in another order."""
    totals = [torch.ones(count) for count in (SMALL, LARGE, 1, LARGE)]
    works = [dist.all_reduce(total, async_op=True) for total in totals]
    for work in reversed(works):
        assert work is not None
        work.wait()
    assert all(bool((total == dist.get_world_size()).all()) for total in totals)


def in_wait(number: int) -> None:
    """All but the rank at fault wait for it, every other time."""
    if number % 2 and dist.get_rank() == dist.get_world_size() - 1:
        time.sleep(0.05)
    exchange(SMALL)


MOMENTS = {"small": small, "large": large, "in flight": in_flight, "in wait": in_wait}


def open_scene(rank: int, size: int, moment: str = "small") -> Scene:
    return Scene(rank, size, open_store("scene"), MOMENTS[moment])


# --- Groups ---------------------------------------------------------------------------------------


def join(name: str, rank: int, size: int, timeout: float = TIMEOUT) -> None:
    """Makes the default group. ``name`` keeps its keys in the store apart from others'."""
    dist.init_process_group(
        *("freescale",),
        store=open_store(name),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout),
    )


def restart(scene: Scene, size: int) -> None:
    """A new default group of the first ``size`` ranks works at once.

    None leaves the old one before all are here: for one that is slow to notice the fault, that
    would be another reason to fail.
    """
    scene.meet("restart", size)
    if dist.is_initialized():
        dist.destroy_process_group()
    join("again", scene.rank, size)
    exchange(SMALL)
    exchange(LARGE)
