"""What fs.stats() counts."""

import time

import pytest
import torch
import torch.distributed as dist

import freescale_pg as fs
from harness.late import call_last
from harness.launch import Launcher

pytestmark = pytest.mark.freescale_only


def row_of(op: str) -> fs.OpStats:
    rows = [row for row in fs.stats().ops if row.op == op]
    assert len(rows) == 1, fs.stats()
    return rows[0]


def check_bytes(rank: int, size: int) -> None:
    fs.reset_stats()
    assert fs.stats().ops == []
    others = size - 1
    for _ in range(3):
        dist.all_to_all_single(torch.empty(size * 10), torch.ones(size * 10))
    row = row_of("all_to_all_single")
    assert row.priority == "NORMAL"
    assert row.calls == 3
    # What a rank keeps for itself does not travel: 3 calls of 10 floats to each other rank.
    assert row.bytes_sent == row.bytes_received == 3 * 10 * 4 * others
    peers = [peer for peer in range(size) if peer != rank]
    assert fs.stats().links == [fs.LinkStats(peer, 3 * 10 * 4, 3 * 10 * 4) for peer in peers]

    dist.all_gather_into_tensor(torch.empty(size * 7), torch.ones(7))
    row = row_of("all_gather_into_tensor")
    assert row.bytes_sent == row.bytes_received == 7 * 4 * others

    dist.broadcast(torch.ones(5), 0)
    row = row_of("broadcast")
    assert row.bytes_sent == (5 * 4 * others if rank == 0 else 0)
    assert row.bytes_received == (0 if rank == 0 else 5 * 4)

    dist.barrier()
    assert row_of("barrier").bytes_sent == 0


def check_links(rank: int, size: int) -> None:
    """By ranks of the job, whatever the group; and after it."""
    group = dist.new_group([1, 2])
    dist.barrier()
    fs.reset_stats()
    assert fs.stats().links == []
    if rank != 0:
        dist.broadcast(torch.ones(6), 2, group=group)
    expected = [[], [fs.LinkStats(2, 0, 24)], [fs.LinkStats(1, 24, 0)]][rank]
    assert fs.stats().links == expected
    dist.destroy_process_group()
    assert fs.stats().links == expected


def check_table(rank: int, size: int) -> None:
    """Printed, they are a table with one line for each operation and priority."""
    fs.reset_stats()
    for priority in (fs.Priority.LOW, fs.Priority.URGENT):
        fs.all_to_all_single(torch.empty(size), torch.ones(size), priority=priority)
    dist.barrier()
    title, *rows = str(fs.stats()).splitlines()
    assert title.split()[:3] == ["op", "priority", "calls"]
    assert [row.split()[:3] for row in rows] == [
        ["all_to_all_single", "URGENT", "1"],
        ["barrier", "NORMAL", "1"],
        ["all_to_all_single", "LOW", "1"],
    ]
    assert {len(row) for row in rows} == {len(title)}


def check_each_op_has_its_name(rank: int, size: int) -> None:
    fs.reset_stats()
    ones = torch.ones(size)
    dist.all_reduce(ones)
    dist.reduce(ones, 0)
    dist.reduce_scatter_tensor(torch.empty(1), ones)
    dist.reduce_scatter(torch.empty(1), list(ones.split(1)))
    dist.all_gather(list(torch.empty(size).split(1)), torch.ones(1))
    dist.all_to_all(list(torch.empty(size).split(1)), list(ones.split(1)))
    dist.gather(torch.ones(1), list(torch.empty(size).split(1)) if rank == 0 else None)
    dist.scatter(torch.empty(1), list(ones.split(1)) if rank == 0 else None)
    if rank == 0:
        dist.send(ones, 1)
    else:
        dist.recv(ones, 0)
    names = {row.op: row.calls for row in fs.stats().ops}
    expected = {
        *("all_reduce", "reduce", "reduce_scatter_tensor", "reduce_scatter", "all_gather"),
        *("all_to_all", "gather", "scatter", "send" if rank == 0 else "recv"),
    }
    assert names == dict.fromkeys(expected, 1)


def check_times(rank: int, size: int) -> None:
    """Bounds that hold however late a busy machine lets a rank go on."""
    late = 0.2

    def call() -> None:
        if rank == 1:
            time.sleep(late)  # rank 0 is known to wait
        begin = time.monotonic()
        dist.all_reduce(torch.ones(1))
        taken.append(time.monotonic() - begin)

    dist.barrier()
    fs.reset_stats()
    taken: list[float] = []
    call_last(rank, size, "all_reduce", call, "late")
    row = row_of("all_reduce")
    least = late if rank == 0 else 0.0
    assert least < row.in_flight_seconds <= taken[0]
    assert least <= row.blocked_seconds <= taken[0]

    fs.reset_stats()
    work = dist.all_reduce(torch.ones(1), async_op=True)
    assert work is not None
    while not work.is_completed():
        time.sleep(0.001)
    work.wait()
    assert row_of("all_reduce").blocked_seconds == 0


def check_order(rank: int, size: int) -> None:
    fs.reset_stats()
    for level in (fs.Priority.LOW, fs.Priority.URGENT, fs.Priority.NORMAL):
        with fs.priority(level):
            dist.all_reduce(torch.ones(1))
            dist.barrier()
    assert [(row.priority, row.op) for row in fs.stats().ops] == [
        (level, op) for level in ("URGENT", "NORMAL", "LOW") for op in ("all_reduce", "barrier")
    ]


def check_after_the_groups(rank: int, size: int) -> None:
    fs.reset_stats()
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
    assert row_of("all_reduce").calls == 1


def test_table(launch: Launcher) -> None:
    launch(check_table, 2)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_bytes_that_travel(launch: Launcher, size: int) -> None:
    launch(check_bytes, size)


def test_links(launch: Launcher) -> None:
    launch(check_links, 3)


def test_names(launch: Launcher) -> None:
    launch(check_each_op_has_its_name, 2)


def test_times(launch: Launcher) -> None:
    launch(check_times, 2)


def test_order_of_rows(launch: Launcher) -> None:
    launch(check_order, 2)


def test_totals_outlive_the_groups(launch: Launcher) -> None:
    launch(check_after_the_groups, 2)
