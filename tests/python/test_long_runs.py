"""A short form of the soak, and a job that torchrun restarts."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.freescale_only

SOAK = Path(__file__).parents[1] / "soak" / "soak.py"
LIMIT = 100.0  # seconds

# A worker dies in the middle of its job once; the next attempt has another process in its place.
WORKER = """
import os, signal
import torch
import torch.distributed as dist

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("freescale")
rank, size = dist.get_rank(), dist.get_world_size()
for step in range(20):
    if attempt == 0 and rank == 1 and step == 10:
        os.kill(os.getpid(), signal.SIGKILL)
    total = torch.full((50_000,), float(rank))
    dist.all_reduce(total)
    assert float(total[-1]) == size * (size - 1) / 2
dist.destroy_process_group()
print(f"rank {rank} done in attempt {attempt}", flush=True)
"""


def run(*command: str) -> str:
    """The output of a command that must succeed, started as if by no launcher."""
    launcher = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    environment = {name: value for name, value in os.environ.items() if name not in launcher}
    finished = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
        env=environment,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout
    return finished.stdout


def test_short_soak() -> None:
    sizes = ("--calls", "1000", "--groups", "30", "--large-gib", "0.05")
    output = run(sys.executable, str(SOAK), "--ranks", "3", *sizes)
    assert [f"{part}: passed" in output for part in ("calls", "groups", "large")] == [True] * 3


def test_restart_by_torchrun(tmp_path: Path) -> None:
    program = tmp_path / "worker.py"
    program.write_text(textwrap.dedent(WORKER))
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=2")
    output = run(*launcher, "--nproc-per-node=3", str(program))
    for rank in range(3):
        assert f"rank {rank} done in attempt 1" in output, output
    assert "in attempt 2" not in output
