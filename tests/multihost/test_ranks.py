"""The launcher itself, with gloo: ranks are where they should be, and their faults show."""

import os
import re
import socket
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from harness.launch import RanksFailed
from harness.rank import open_store
from host_rank import await_word, say
from launcher import Ranks, torchrun
from network import Network

Networks = Callable[[int], Network]


def where_am_i(rank: int, size: int) -> tuple[int, str, str, str]:
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    net, pid = (str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in ("net", "pid"))
    return int(total), socket.gethostname(), net, pid


def meet_in_store(rank: int, size: int) -> int:
    store = open_store("words")
    store.set(f"here/{rank}", str(rank))
    return sum(int(store.get(f"here/{peer}")) for peer in range(size))


def raise_on_rank_one(rank: int, size: int) -> None:
    print("a line of output")
    if rank == 1:
        raise KeyError("what went wrong")


def wait_for_the_test(rank: int, size: int) -> str:
    say(f"ready{rank}")
    await_word("go")
    return "went"


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("per_host", [1, [2, 1]], ids=str)
def test_ranks_are_on_their_hosts(
    shared_network: Networks, ranks: Ranks, per_host: int | list[int], family: int
) -> None:
    found = ranks(shared_network(2), per_host, where_am_i, backend="gloo", family=family)
    size = len(found)
    assert [total for total, *_ in found] == [size * (size + 1) / 2] * size
    assert [host for _, host, *_ in found] == ["host0"] * (size - 1) + ["host1"]
    for kind in (2, 3):
        assert len({one[kind] for one in found}) == 2


def test_freescale_within_a_host(make_network: Callable[..., Network], ranks: Ranks) -> None:
    """What the launcher looks for at the end is not there, if it is not the backend's."""
    with make_network(1) as network:
        found = ranks(network, 3, where_am_i, backend="freescale")
    assert [total for total, *_ in found] == [6] * 3


def keep_descriptor(rank: int, size: int) -> None:
    os.pipe()


def test_leak_is_reported(shared_network: Networks, ranks: Ranks) -> None:
    how = {"init": False, "checks_footprint": True, "return_limit": 0.1}
    with pytest.raises(RanksFailed, match=r"left behind after .*: file descriptors"):
        ranks(shared_network(2), [1, 0], keep_descriptor, **how)


def test_bodies_meet_in_a_store_beside_the_backend(shared_network: Networks, ranks: Ranks) -> None:
    assert ranks(shared_network(2), 1, meet_in_store, init=False) == [1, 1]


def test_failure_is_reported_with_rank_traceback_and_output(
    shared_network: Networks, ranks: Ranks
) -> None:
    with pytest.raises(RanksFailed) as caught:
        ranks(shared_network(2), 1, raise_on_rank_one, init=False)
    message = str(caught.value)
    assert "rank 1: Traceback" in message
    assert "KeyError: 'what went wrong'" in message
    assert "| a line of output" in message
    assert "rank 0" not in message


def test_hang_ends_at_the_limit_with_a_stack(shared_network: Networks, ranks: Ranks) -> None:
    with pytest.raises(RanksFailed, match=r"(?s)still ran after 5 s.*wait_for_the_test"):
        ranks(shared_network(2), 1, wait_for_the_test, init=False, limit=5)


def test_killed_rank_is_a_dead_rank(shared_network: Networks, ranks: Ranks) -> None:
    job = ranks.start(shared_network(2), 1, wait_for_the_test, init=False, dies={1})
    job.await_word("ready1")
    job.kill(1)
    job.say("go")
    assert job.wait() == ["went", None]


def test_stopped_rank_goes_on_when_resumed(shared_network: Networks, ranks: Ranks) -> None:
    job = ranks.start(shared_network(2), 1, wait_for_the_test, init=False)
    job.await_word("ready0")
    job.stop(0)
    job.say("go")
    job.await_word("ready1")
    stat = Path(f"/proc/{job.pid(0)}/stat").read_text()
    assert stat.rpartition(")")[2].split()[0] == "T"
    job.resume(0)
    assert job.wait() == ["went", "went"]


PROGRAM = """
import os, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {int(total)}", flush=True)
dist.destroy_process_group()
sys.exit(3 if dist.is_initialized() or os.environ.get("FAILS") == os.environ["RANK"] else 0)
"""


def test_torchrun_on_two_hosts(shared_network: Networks, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    outputs = torchrun(shared_network(2), 2, [str(program)], tmp_path)
    found = [sorted(re.findall(r"rank (\d) of (\d): (\d+)", output)) for output in outputs]
    assert found == [
        [("0", "4", "10"), ("1", "4", "10")],
        [("2", "4", "10"), ("3", "4", "10")],
    ]


def test_torchrun_names_the_rank_that_failed(shared_network: Networks, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    with pytest.raises(RanksFailed, match=r"(?s)host1: exit code 1.*exitcode\s*: 3"):
        torchrun(shared_network(2), 1, [str(program)], tmp_path, environment={"FAILS": "1"})
