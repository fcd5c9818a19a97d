"""Operations in flight: many at once, waited for in any order, twice, and from any thread."""

import threading
import time
import weakref
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from harness.data import arbitrary, assert_same_bits, poisoned
from harness.launch import Launcher

# Floats: inline, about the inline limit, and several chunks.
COUNTS = [1, 1000, 1024, 200_000]
# Compared as versions, not as texts.
HAS_WORK_EXCEPTION = torch.__version__ >= "2.13"


class Exchange:
    """One all_to_all_single in flight, and how to check its result."""

    def __init__(self, group: dist.ProcessGroup | None, count: int, key: object) -> None:
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        self._what = (key, count)
        self._output = poisoned(size * count)
        self._expected = torch.cat([arbitrary(count, key=(key, p, rank)) for p in range(size)])
        given = torch.cat([arbitrary(count, key=(key, rank, peer)) for peer in range(size)])
        work = dist.all_to_all_single(self._output, given, group=group, async_op=True)
        assert work is not None
        self.work = work

    def finish(self) -> None:
        assert self.work.wait()
        assert self.work.is_completed()
        assert_same_bits(self._output, self._expected, self._what)


def start_many(group: dist.ProcessGroup | None, number: int, key: object) -> list[Exchange]:
    return [Exchange(group, COUNTS[i % len(COUNTS)], (key, i)) for i in range(number)]


def check_order_of_waits(rank: int, size: int) -> None:
    for exchange in start_many(None, 40, "in order"):
        exchange.finish()
    for exchange in reversed(start_many(None, 40, "reversed")):
        exchange.finish()
    exchanges = start_many(None, 40, "shuffled")
    # Another order on each rank.
    for number in torch.randperm(40, generator=torch.Generator().manual_seed(rank)).tolist():
        exchanges[number].finish()


def check_wait_again(rank: int, size: int) -> None:
    for count in COUNTS:
        exchange = Exchange(None, count, "twice")
        exchange.finish()
        exchange.finish()


def check_wait_in_threads(rank: int, size: int) -> None:
    """Many threads wait for one work, and one thread for many works of others."""
    exchange = Exchange(None, COUNTS[-1], "many waiters")
    run_in_threads([exchange.finish] * 4)
    exchanges = start_many(None, 24, "one waiter each")
    run_in_threads([exchange.finish for exchange in reversed(exchanges)])


def check_call_in_threads(rank: int, size: int) -> None:
    """Each thread has its own group and calls in its own time."""
    groups = [dist.new_group() for _ in range(4)]

    def use(number: int) -> None:
        for turn in range(20):
            Exchange(groups[number], COUNTS[(turn + number) % len(COUNTS)], (number, turn)).finish()

    run_in_threads([lambda number=number: use(number) for number in range(len(groups))])


def check_future(rank: int, size: int) -> None:
    for count in COUNTS:
        output = poisoned(size * count)
        work = dist.all_to_all_single(output, torch.ones(size * count), async_op=True)
        assert work is not None
        doubled = work.get_future().then(lambda future: future.value()[0] * 2)
        assert torch.equal(doubled.wait(), torch.full((size * count,), 2.0))
        assert torch.equal(work.result()[0], output)
        assert torch.equal(work.get_future().wait()[0], output)


def check_polling(rank: int, size: int) -> None:
    """An operation completes although nobody waits in it."""
    for count in COUNTS:
        exchange = Exchange(None, count, "polled")
        deadline = threading.Event()
        while not exchange.work.is_completed():
            deadline.wait(0.001)
        exchange.finish()


def check_dropped_tensors(rank: int, size: int) -> None:
    """Works own what they read and write: the caller may let go of its tensors and of the work."""
    for turn in range(30):
        count = COUNTS[turn % len(COUNTS)]
        output = poisoned(size * count)
        work = dist.all_to_all_single(
            output, torch.full((size * count,), float(rank)), async_op=True
        )
        assert work is not None
        if turn % 3 == 0:
            del output, work
            continue
        # Memory that was let go too early would be taken by this, and sent instead.
        torch.full((size * count,), -1.0)
        work.wait()
        expected = torch.arange(float(size)).repeat_interleave(count)
        assert_same_bits(output, expected, f"turn {turn}")
    dist.barrier()


def check_all_kinds_at_once(rank: int, size: int) -> None:
    """Different collectives of one group in flight together."""
    for turn in range(10):
        total = torch.full((50_000,), rank + 1.0)
        gathered = poisoned(size * 1000)
        shared = torch.full((3,), float(turn)) if rank == 0 else poisoned(3)
        part = poisoned(10)
        works = [
            dist.all_reduce(total, async_op=True),
            dist.all_gather_into_tensor(gathered, torch.full((1000,), float(rank)), async_op=True),
            dist.broadcast(shared, 0, async_op=True),
            dist.reduce_scatter_tensor(part, torch.ones(10 * size), async_op=True),
            dist.barrier(async_op=True),
        ]
        for work in reversed(works):
            assert work is not None
            work.wait()
        assert_same_bits(total, torch.full((50_000,), size * (size + 1) / 2), "all_reduce")
        ranks = torch.arange(float(size)).repeat_interleave(1000)
        assert_same_bits(gathered, ranks, "all_gather_into_tensor")
        assert_same_bits(shared, torch.full((3,), float(turn)), "broadcast")
        assert_same_bits(part, torch.full((10,), float(size)), "reduce_scatter_tensor")


def check_state_of_a_finished_work(rank: int, size: int) -> None:
    """Everything that portable code may ask of a work."""
    for count in COUNTS:
        exchange = Exchange(None, count, "state")
        pause = threading.Event()
        while not exchange.work.is_completed():
            pause.wait(0.001)
        assert exchange.work.is_success()
        # torch 2.11 cannot hand what it returns to Python.
        if HAS_WORK_EXCEPTION:
            assert exchange.work.exception() is None
        assert exchange.work.get_future().done()
        exchange.finish()


def check_outputs_are_collected(rank: int, size: int) -> None:
    """Nothing keeps an output once its work is over and dropped, failed ones included."""
    for count in COUNTS:
        for fails in (False, True):
            group = dist.new_group()
            outputs = [poisoned(count) for _ in range(size)]
            gone = [weakref.ref(output) for output in outputs]
            storages = [output.untyped_storage().data_ptr() for output in outputs]
            assert len(set(storages)) == size
            length = count + 1 if fails and rank == size - 1 else count
            try:
                work = dist.all_gather(outputs, torch.ones(length), group=group, async_op=True)
                assert work is not None
                work.wait()
                dist.barrier(group)
            except (RuntimeError, ValueError):
                assert fails
            else:
                assert not fails
            work = None
            del outputs
            # The thread that ended the work may still be about to let go of it.
            limit = time.monotonic() + 10.0
            while any(reference() is not None for reference in gone):
                assert time.monotonic() < limit, (count, fails)
                time.sleep(0.001)


def run_in_threads(calls: list[Callable[[], None]]) -> None:
    """Runs all at once; raises what the first that failed raised."""
    failures: list[BaseException] = []

    def guarded(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=guarded, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


CHECKS = [
    check_order_of_waits,
    check_wait_again,
    check_wait_in_threads,
    check_call_in_threads,
    check_future,
    check_polling,
    check_dropped_tensors,
    check_all_kinds_at_once,
    check_state_of_a_finished_work,
]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_in_flight(launch: Launcher, check: Callable[[int, int], None], size: int) -> None:
    launch(check, size)


@pytest.mark.freescale_only
@pytest.mark.parametrize("size", [1, 3])
def test_outputs_are_collected(launch: Launcher, size: int) -> None:
    launch(check_outputs_are_collected, size)
