"""How ranks find each other: again on one store, after a restart, beside other jobs."""

import os
import re
import signal
import subprocess
import sys
import textwrap
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from harness.data import arbitrary, assert_same_bits, poisoned
from harness.footprint import Footprint
from harness.launch import Launcher
from harness.rank import open_store

pytestmark = pytest.mark.freescale_only

TIMEOUT = timedelta(seconds=60)


def init(store: dist.Store, rank: int, size: int) -> None:
    dist.init_process_group("freescale", store=store, rank=rank, world_size=size, timeout=TIMEOUT)


def exchange(rank: int, size: int, salt: object) -> None:
    for count in (5, 100_000):
        output = poisoned(size * count)
        given = torch.cat([arbitrary(count, key=(salt, rank, peer)) for peer in range(size)])
        dist.all_to_all_single(output, given)
        expected = torch.cat([arbitrary(count, key=(salt, peer, rank)) for peer in range(size)])
        assert_same_bits(output, expected, (salt, count))


def check_same_store(rank: int, size: int) -> None:
    """The keys of earlier groups are still there."""
    store = open_store("one for all")
    for turn in range(10):
        init(store, rank, size)
        exchange(rank, size, turn)
        # torch counts who has come by keys of its own; they must not be touched too early.
        dist.barrier()
        dist.destroy_process_group()


def check_restart_counters(rank: int, size: int) -> None:
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(rank)
    init(open_store("counters"), rank, size)
    exchange(rank, size, "counters")


def check_two_worlds(rank: int, size: int) -> None:
    """Two jobs of two ranks at once, whose ranks have the same numbers."""
    world, member = divmod(rank, 2)
    init(open_store(f"world {world}"), member, 2)
    for turn in range(20):
        exchange(member, 2, (world, turn))


def check_names(rank: int, size: int) -> None:
    """Shared memory has no name that anything could clash with, remove, or run out of."""
    exchange(rank, size, "names")
    maps = Path("/proc/self/maps").read_text()
    assert "/dev/shm" not in maps
    assert re.search(r"/memfd:\S*freescale", maps), "the test looks for what is not there"
    opened = Footprint.take().descriptors.values()
    assert not [target for target in opened if target.startswith("/dev/shm")]


@pytest.mark.parametrize("store", ["tcp", "file"])
def test_same_store_again_and_again(launch: Launcher, store: str) -> None:
    launch(check_same_store, 2, init=False, store=store)


def test_restart_counters_that_differ(launch: Launcher) -> None:
    launch(check_restart_counters, 3, init=False)


def test_two_worlds_at_once(launch: Launcher) -> None:
    launch(check_two_worlds, 4, init=False)


def test_nothing_has_a_name(launch: Launcher) -> None:
    launch(check_names, 3)


PREAMBLE = """
import os, signal, sys
from datetime import timedelta
import torch
import torch.distributed as dist

def init(rank, **options):
    dist.init_process_group(
        "freescale", rank=rank, world_size=2, timeout=timedelta(seconds=60), **options)

def check():
    group = dist.new_group([1, 0])
    for count in (3, 100_000):
        output, rank = torch.empty(2 * count), float(dist.get_rank())
        dist.all_to_all_single(output, torch.full((2 * count,), rank), group=group)
        assert torch.equal(output, torch.arange(2.0).repeat_interleave(count))
"""


def run(tmp_path: Path, text: str, *commands: list[str], seeds: bool = False) -> list[int]:
    """Runs a program once for each command line; returns the exit codes."""
    source = tmp_path / "program.py"
    source.write_text(PREAMBLE + textwrap.dedent(text))
    processes = []
    for number, command in enumerate(commands):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if seeds:
            environment["PYTHONHASHSEED"] = str(number + 1)
        words = [sys.executable, *[str(source) if word == "PROGRAM" else word for word in command]]
        processes.append(subprocess.Popen(words, env=environment, start_new_session=True))
    try:
        return [process.wait(timeout=100) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def test_hash_seeds_that_differ(tmp_path: Path) -> None:
    """Nothing that ranks must agree on follows the order of a set."""
    program = """
    init(int(sys.argv[1]), init_method="file://" + sys.argv[2])
    for name in {"a", "b", "c", "d"}:
        check()
    dist.destroy_process_group()
    """
    meeting = str(tmp_path / "meeting")
    codes = run(tmp_path, program, *[["PROGRAM", str(r), meeting] for r in range(2)], seeds=True)
    assert codes == [0, 0]


def test_file_of_a_killed_run(tmp_path: Path) -> None:
    """torch's file store is not cleaned up by a run that is killed; the next one must not hang."""
    killed = """
    init(int(sys.argv[1]), init_method="file://" + sys.argv[2])
    check()
    dist.barrier()
    os.kill(os.getpid(), signal.SIGKILL)
    """
    following = """
    try:
        dist.init_process_group(
            "freescale", rank=int(sys.argv[1]), world_size=2, timeout=timedelta(seconds=5),
            init_method="file://" + sys.argv[2])
        check()
    except RuntimeError as error:
        print(error)
        os._exit(3)
    dist.destroy_process_group()
    """
    meeting = str(tmp_path / "meeting")
    commands = [["PROGRAM", str(rank), meeting] for rank in range(2)]
    assert run(tmp_path, killed, *commands) == [-signal.SIGKILL] * 2
    codes = run(tmp_path, following, *commands)
    assert codes in ([0, 0], [3, 3]), codes


def test_restart_after_a_worker_is_killed(tmp_path: Path) -> None:
    """torchrun's attempts share a store; each must find its own ranks in it."""
    program = """
    dist.init_process_group("freescale")
    check()
    if os.environ["TORCHELASTIC_RESTART_COUNT"] in "01" and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    open(sys.argv[1] + "/" + os.environ["RANK"], "w").write("done")
    dist.destroy_process_group()
    """
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    options = ["--nproc-per-node=2", "--max-restarts=3", "--monitor-interval=0.1"]
    assert run(tmp_path, program, [*launcher, *options, "PROGRAM", str(tmp_path)]) == [0]
    assert {path.name for path in tmp_path.iterdir()} >= {"0", "1"}
