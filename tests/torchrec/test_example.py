"""The example, as its readers start it."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from harness.failed_program import STACKS, failure_of
from harness.gloo_threads import check_end

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "torchrec_dlrm.py"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]


def run(*options: str) -> str:
    process = subprocess.Popen(
        [sys.executable, *TORCHRUN, "--nproc-per-node=2", SCRIPT, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **STACKS, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=100)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # Its own session: torchrun and its ranks.
            process.communicate()
    assert process.returncode == 0, failure_of(output, errors)
    return output


def losses_of(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^step \d+: loss ([0-9.]+)$", output, re.M)]


def test_it_learns() -> None:
    output = run("--steps=100")
    first, *_, last = losses_of(output)
    # At first it knows no more than a coin.
    assert first > 0.69
    assert last < 0.4
    assert re.search(r"^all_to_all_single +LOW ", output, re.M), output


def test_another_backend() -> None:
    output = run("--steps=1", "--backend=gloo")
    assert len(losses_of(output)) == 1
    assert "LOW" not in output


def test_threads_of_gloo_end_before_the_interpreter() -> None:
    check_end(SCRIPT, ["--steps=1", "--backend=gloo"])
