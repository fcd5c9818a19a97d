"""Ranks that may send so many bytes a second only: right results, ends, and how it shows.

Times have lower bounds alone, which the rate guarantees.
"""

import os
import signal
import sys
import tempfile
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import freescale_pg as fs
from freescale_pg import debug
from harness.data import arbitrary, assert_same_bits, numbers, poisoned
from harness.launch import Launcher
from harness.rank import open_store

pytestmark = pytest.mark.freescale_only

VARIABLE = "FREESCALE_EMULATED_LINK_RATE"
# Every size at it takes milliseconds; and so slow that nothing large ends within a test.
RATE = {VARIABLE: "200MB"}
CRAWL = {VARIABLE: "1MB"}
# Elements: with the header, one chunk, chunks of which the last is short.
COUNTS = (0, 1, 700, 9_001, 150_007)
LARGE = 5_000_000


def check_all_to_all(count: int, rank: int, size: int) -> None:
    # Ragged: nothing at all to some.
    splits = [
        [count * ((sender + 2 * to) % 3) // 2 for to in range(size)] for sender in range(size)
    ]
    given = torch.cat([arbitrary(splits[rank][to], key=(count, rank, to)) for to in range(size)])
    expected = [arbitrary(splits[peer][rank], key=(count, peer, rank)) for peer in range(size)]
    output = poisoned(sum(splits[peer][rank] for peer in range(size)))
    taken = [splits[peer][rank] for peer in range(size)]
    dist.all_to_all_single(output, given, taken, splits[rank])
    assert_same_bits(output, torch.cat(expected), ("all_to_all", count))


def check_gathers(count: int, rank: int, size: int) -> None:
    mine = [arbitrary(count, key=(count, peer)) for peer in range(size)]
    output = poisoned(count * size)
    dist.all_gather_into_tensor(output, mine[rank])
    assert_same_bits(output, torch.cat(mine), ("all_gather", count))
    root = size - 1
    shared = mine[root].clone() if rank == root else poisoned(count)
    dist.broadcast(shared, src=root)
    assert_same_bits(shared, mine[root], ("broadcast", count))
    lists = [poisoned(count) for _ in range(size)] if rank == 0 else None
    dist.gather(mine[rank], lists, dst=0)
    for peer, part in enumerate(lists or []):
        assert_same_bits(part, mine[peer], ("gather", count, peer))
    part = poisoned(count)
    dist.scatter(part, mine if rank == 0 else None, src=0)
    assert_same_bits(part, mine[rank], ("scatter", count))


def check_reductions(count: int, rank: int, size: int) -> None:
    parts = [numbers(count, key=(count, peer)) for peer in range(size)]
    total = sum(parts[1:], parts[0])
    reduced = parts[rank].clone()
    dist.all_reduce(reduced)
    assert_same_bits(reduced, total, ("all_reduce", count))
    wide = [numbers(count * size, key=(count, "wide", peer)) for peer in range(size)]
    own = poisoned(count)
    dist.reduce_scatter_tensor(own, wide[rank])
    expected = sum(wide[1:], wide[0])[rank * count : (rank + 1) * count]
    assert_same_bits(own, expected, ("reduce_scatter", count))


def check_point_to_point(count: int, rank: int, size: int) -> None:
    right, left = (rank + 1) % size, (rank - 1) % size
    received = poisoned(count)
    work = dist.isend(arbitrary(count, key=(count, rank, "ring")), right)
    dist.recv(received, left)
    assert work is not None
    work.wait()
    assert_same_bits(received, arbitrary(count, key=(count, left, "ring")), ("ring", count))


def check_results(rank: int, size: int) -> None:
    for count in COUNTS:
        check_all_to_all(count, rank, size)
        check_gathers(count, rank, size)
        check_reductions(count, rank, size)
        check_point_to_point(count, rank, size)
    dist.barrier()


@pytest.mark.parametrize("size", [2, 3])
def test_results_are_right(launch: Launcher, size: int) -> None:
    launch(check_results, size, environment=RATE)


def check_priorities_at_once(rank: int, size: int) -> None:
    """Many exchanges of all urgencies in flight together, also more small ones than go inline."""
    works = []
    for number in range(60):
        count = COUNTS[2 + number % 3] // 3
        priority = list(fs.Priority)[number % len(fs.Priority)]
        given = torch.cat([arbitrary(count, key=(number, rank, to)) for to in range(size)])
        output = poisoned(count * size)
        with fs.priority(priority):
            work = dist.all_to_all_single(output, given, async_op=True)
        works.append((number, count, given, output, work))
    for number, count, _, output, work in reversed(works):
        assert work is not None
        work.wait()
        expected = [arbitrary(count, key=(number, peer, rank)) for peer in range(size)]
        assert_same_bits(output, torch.cat(expected), number)


def test_all_priorities_at_once(launch: Launcher) -> None:
    launch(check_priorities_at_once, 3, environment=RATE)


def check_lower_bound(rank: int, size: int, rate: float) -> None:
    # Bytes that leave every rank. So many calls that other paths would be tried, if there were any.
    calls = [4_000_000] + 100 * [60_000]
    dist.barrier()
    begin = time.monotonic()
    for count in calls:
        given = torch.zeros(count // (size - 1) * size, dtype=torch.uint8)
        dist.all_to_all_single(torch.empty_like(given), given)
    dist.barrier()
    assert time.monotonic() - begin >= sum(calls) / rate * 0.99


@pytest.mark.parametrize("size", [2, 3])
def test_no_rank_sends_faster_than_the_rate(launch: Launcher, size: int) -> None:
    """Also where the receiver could read the bytes directly."""
    launch(check_lower_bound, size, 10e6, environment={VARIABLE: "10MB"})


def check_small_lower_bound(rank: int, size: int) -> None:
    given, output = torch.zeros(size * 1000), torch.empty(size * 1000)
    begin = time.monotonic()
    for _ in range(50):
        dist.all_to_all_single(output, given)
    assert time.monotonic() - begin >= 49 * 4000 / 1e6


def test_messages_with_their_headers_count_too(launch: Launcher) -> None:
    launch(check_small_lower_bound, 2, environment=CRAWL)


# --- Ends while bytes wait for their time ---------------------------------------------------------


def check_timeout(rank: int, size: int) -> None:
    # An answer at such a rate would take 20 s.
    given = torch.ones(size * LARGE)
    group = dist.group.WORLD
    group.set_timeout(timedelta(seconds=2))
    with pytest.raises(RuntimeError, match=r"Timed out|gave it up"):
        dist.all_to_all_single(torch.empty_like(given), given)
    group.set_timeout(timedelta(seconds=60))
    store = open_store("timeout")
    store.set(f"over {rank}", "")
    store.wait([f"over {peer}" for peer in range(size)])
    total = torch.ones(3)
    dist.all_reduce(total)
    assert_same_bits(total, torch.full((3,), float(size)), "after the timeout")


def test_timeout(launch: Launcher) -> None:
    launch(check_timeout, 2, environment=CRAWL)


def check_leaving(rank: int, size: int, how: str) -> None:
    dist.barrier()
    given = torch.ones(size * LARGE)
    work = dist.all_to_all_single(torch.empty_like(given), given, async_op=True)
    assert work is not None
    begin = time.monotonic()
    if how == "abort":
        dist.group.WORLD.abort()
    dist.destroy_process_group()
    with pytest.raises(RuntimeError, match=r"abort|closed|destroyed|shut down"):
        work.wait()
    assert time.monotonic() - begin < 15.0  # the bytes would take more than 20


@pytest.mark.parametrize("how", ["abort", "destroy"])
def test_leaving_in_flight(launch: Launcher, how: str) -> None:
    launch(check_leaving, 3, how, environment=CRAWL)


def check_death(rank: int, size: int) -> None:
    dist.barrier()
    given = torch.ones(size * LARGE)
    work = dist.all_to_all_single(torch.empty_like(given), given, async_op=True)
    assert work is not None
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(RuntimeError, match="rank 1"):
        work.wait()
    assert time.monotonic() - begin < 15.0


def test_peer_that_dies(launch: Launcher) -> None:
    launch(check_death, 3, dies=[1], environment=CRAWL)


# --- The setting ----------------------------------------------------------------------------------


def check_shown(rank: int, size: int, rate: int | None) -> None:
    assert debug.dump()["emulated_link_rate"] == rate


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("250MB", 250_000_000),
        ("1GB", 1_000_000_000),
        ("10kB", 10_000),
        ("7B", 7),
        ("123456", 123_456),
    ],
)
def test_rate_is_shown(launch: Launcher, text: str, rate: int) -> None:
    launch(check_shown, 1, rate, environment={VARIABLE: text})


def test_no_rate_is_shown_without_one(launch: Launcher) -> None:
    launch(check_shown, 1, None)


def check_warning(rank: int, size: int) -> None:
    sys.stderr.flush()
    log = os.dup(2)
    with tempfile.TemporaryFile() as caught:
        os.dup2(caught.fileno(), 2)
        dist.init_process_group("freescale", store=open_store("warn"), rank=rank, world_size=size)
        os.dup2(log, 2)
        os.close(log)
        caught.seek(0)
        lines = [line for line in caught.read().decode().splitlines() if VARIABLE in line]
    assert len(lines) == 1, lines
    assert " 1000000 bytes/s" in lines[0]


def test_rate_is_warned_of_once(launch: Launcher) -> None:
    launch(check_warning, 1, init=False, environment=CRAWL)


def check_refused(rank: int, size: int, text: str) -> None:
    with pytest.raises(ValueError, match=VARIABLE) as refused:
        dist.init_process_group("freescale", store=open_store("bad"), rank=rank, world_size=size)
    assert f'"{text}"' in str(refused.value)


@pytest.mark.parametrize(
    "text",
    ["", "fast", "0", "0MB", "-1MB", "1.5GB", "1TB", "1 GB", "MB", "1mb", "9" * 30, "2000GB"],
)
def test_wrong_rate_is_refused(launch: Launcher, text: str) -> None:
    launch(check_refused, 1, text, init=False, environment={VARIABLE: text})


def check_later_group(rank: int, size: int) -> None:
    os.environ[VARIABLE] = "2MB"
    with pytest.raises(ValueError, match=rf"{VARIABLE}.*1000000 .*2000000 "):
        dist.new_group()


def test_rate_belongs_to_the_process(launch: Launcher) -> None:
    launch(check_later_group, 1, environment=CRAWL)
