"""Faults while interpreters end without destroy_process_group(): every rank ends, and in time.

At three ranks; ``--fault-sizes 2,3,8`` for others.
"""

import os
import signal
from pathlib import Path

import pytest

from harness.interpreters import Interpreters

# Eight interpreters that import torch on a busy machine take their time.
pytestmark = [pytest.mark.freescale_only, pytest.mark.timeout(300)]

# What the last rank does; the others have two exchanges in flight with it, and exit.
FAULTS = {
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "never calls": "pass",
    "slow": "time.sleep(1)",
    "other operation": "kept = dist.barrier(async_op=True)",
    "other size": "kept = dist.all_reduce(torch.ones(50_001), async_op=True)",
    "the same calls": "kept = [dist.all_reduce(large, async_op=True) for large in tensors]",
}
ENDING = """
tensors = [torch.ones(50_000), torch.ones(7)]
if rank == size - 1:
    {fault}
else:
    kept = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
"""


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_at_exit(tmp_path: Path, fault_size: int, fault: str) -> None:
    with Interpreters(tmp_path, ENDING.format(fault=FAULTS[fault]), fault_size) as ranks:
        last = fault_size - 1
        for rank in range(last):
            ranks.expect_end(rank, 0)
        if fault == "stopped":
            os.kill(ranks.processes[last].pid, signal.SIGCONT)
        ranks.expect_end(last, -signal.SIGKILL if fault == "killed" else 0)


RAISING = """
if rank == size - 1:
    raise KeyError("the real reason")
for _ in range(2):
    dist.all_reduce(total)
"""


def test_exception_that_ends_a_rank(tmp_path: Path, fault_size: int) -> None:
    """Its own traceback is the one that tells; the others name the rank, and end too."""
    with Interpreters(tmp_path, RAISING, fault_size) as ranks:
        last = fault_size - 1
        assert "KeyError: 'the real reason'" in ranks.expect_end(last, 1)
        for rank in range(last):
            assert f"rank {last} left the group" in ranks.expect_end(rank, 1)
