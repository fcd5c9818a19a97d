"""How processes end and fork while groups are alive."""

import atexit
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from harness.interpreters import END_LIMIT, Interpreters
from harness.launch import Launcher
from harness.rank import open_store

pytestmark = pytest.mark.freescale_only


@pytest.mark.parametrize(
    "ending",
    [
        "dist.destroy_process_group()",
        # In flight and never waited for, one with a callback in Python that is pending.
        """
        work = dist.all_reduce(torch.ones(100_000), async_op=True)
        other = dist.all_reduce(torch.ones(9), async_op=True)
        kept = other.get_future().then(lambda future: future.value()[0] + 1)
        """,
        # Only this rank calls: the peer exits meanwhile.
        "if rank == 0: work = dist.all_reduce(torch.ones(9), async_op=True)",
        # A thread waits while the interpreter goes.
        """
        import threading
        work = dist.barrier(async_op=True) if rank == 0 else None
        if work is not None:
            threading.Thread(target=work.wait, daemon=True).start()
        """,
    ],
    ids=["destroyed", "in flight", "one-sided", "thread waits"],
)
def test_exit(tmp_path: Path, ending: str) -> None:
    with Interpreters(tmp_path, ending) as ranks:
        for rank in range(2):
            ranks.expect_end(rank, 0)


BLOCKED = """
import signal, threading, time
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
import freescale_pg as fs

# A program that was started in the background of a shell ignores it.
signal.signal(signal.SIGINT, signal.default_int_handler)

def tell():
    # Another thread gets to see the call only while the main thread is inside it.
    while sum(row.calls for row in fs.stats().ops if row.op == "all_reduce") == 0:
        time.sleep(0.001)
    for _ in range(200):
        time.sleep(0.001)  # Between the call and its wait() the main thread needs the interpreter.
    print("blocked", flush=True)

model = DistributedDataParallel(nn.Linear(3, 3)) if sys.argv[4] == "backward" else None
dist.barrier()
fs.reset_stats()
if rank == 1:
    sys.stdin.read()  # Never calls again.
    sys.exit()
threading.Thread(target=tell, daemon=True).start()
if model is not None:
    model(torch.ones(1, 3)).sum().backward()
else:
    dist.all_reduce(total)
"""


@pytest.mark.parametrize(
    ("number", "where"),
    [
        (signal.SIGINT, "wait"),
        (signal.SIGTERM, "wait"),
        (signal.SIGTERM, "backward"),
    ],
)
def test_signal_ends_a_blocked_rank(tmp_path: Path, number: signal.Signals, where: str) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with Interpreters(tmp_path, BLOCKED, 2, where, **pipes) as ranks:
        blocked = ranks.processes[0]
        assert blocked.stdout is not None
        assert blocked.stdout.readline() == "blocked\n"
        blocked.send_signal(number)
        assert blocked.wait(timeout=END_LIMIT) != 0


FAILING = """
if rank == 1:
    try:
        raise KeyError("the real reason")
    finally:
        dist.group.WORLD.abort()
dist.all_reduce(total)
"""


def test_own_error_is_not_hidden_by_an_abort(tmp_path: Path) -> None:
    with Interpreters(tmp_path, FAILING) as ranks:
        assert "KeyError: 'the real reason'" in ranks.expect_end(1, 1)
        assert "rank 1" in ranks.expect_end(0, 1)


class Squares(Dataset[int]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> int:
        return index * index


def check_data_loader(rank: int, size: int) -> None:
    """Worker processes are forked while the group is alive and in use."""
    loader = DataLoader(Squares(), batch_size=4, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        seen = 0
        for batch in loader:
            total = batch.float().sum()
            dist.all_reduce(total)
            seen += int(total)
        assert seen == size * sum(index * index for index in range(24))


def check_forked_child_is_told(rank: int, size: int) -> None:
    """Links belong to the parent: a fork that uses the group gets an error and harms nobody."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(torch.ones(1))
            text = "no error"
        except RuntimeError as error:
            text = str(error)
        os.write(writable, text.encode())
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable) as pipe:
        text = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    assert "forked" in text, text
    total = torch.ones(1000)
    dist.all_reduce(total)
    assert torch.equal(total, torch.full((1000,), float(size)))


def check_death_behind_a_fork(rank: int, size: int) -> None:
    """A child that outlives its parent must not keep the parent's death from being seen."""
    store = open_store("the child")
    if rank == 0:
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        store.set("process", str(child))
        os._exit(9)
    child = int(store.get("process"))
    begin = time.monotonic()
    with pytest.raises(RuntimeError, match="rank 0"):
        dist.all_reduce(torch.ones(1))
    assert time.monotonic() - begin < 15
    os.kill(child, signal.SIGKILL)


def check_children_that_end(rank: int, size: int) -> None:
    """Forks of a busy process run Python, end as programs do, and disturb nothing."""
    given = torch.arange(size * 100_000.0)
    for turn in range(15):
        output = torch.empty_like(given)
        work = dist.all_to_all_single(output, given, async_op=True)
        assert work is not None
        child = os.fork()
        if child == 0:
            # What a worker does at its end, the destructors of inherited groups included.
            total = sum(range(1000))
            atexit._run_exitfuncs()
            os._exit(0 if total == 499_500 else 1)
        work.wait()
        assert os.waitpid(child, 0)[1] == 0
        share = given[rank * 100_000 : (rank + 1) * 100_000]
        assert torch.equal(output, share.repeat(size)), turn


def check_idle_wait(rank: int, size: int) -> float:
    """CPU seconds that a rank spends on waiting three seconds for another."""
    dist.barrier()
    begin = time.process_time()
    if rank == 1:
        time.sleep(3)
    dist.all_reduce(torch.ones(1))
    return time.process_time() - begin


def test_data_loader_workers(launch: Launcher) -> None:
    # The loader's own resources go when Python collects it.
    launch(check_data_loader, 2, checks_footprint=False)


def test_forked_child_is_told(launch: Launcher) -> None:
    launch(check_forked_child_is_told, 2)


def test_death_of_a_rank_that_has_a_child(launch: Launcher) -> None:
    launch(check_death_behind_a_fork, 2, dies={0})


def test_children_that_end(launch: Launcher) -> None:
    launch(check_children_that_end, 2)


def test_waiting_costs_no_cpu(launch: Launcher) -> None:
    assert launch(check_idle_wait, 2)[0] < 0.3
