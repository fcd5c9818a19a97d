"""Which threads of gloo a program has before it ends its group, and which when Python ends."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.interpreters import without_launcher

# What is registered first runs last.
PROGRAM = """
import atexit, contextlib, pathlib, runpy, sys

def threads():
    names = []
    for path in pathlib.Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            names.append(path.read_text().strip())
    return sorted(names)

atexit.register(lambda: print("at the end:", threads()))
import torch.distributed as dist
destroy = dist.destroy_process_group

def destroy_and_tell():
    print("before:", threads())
    destroy()

dist.destroy_process_group = destroy_and_tell
sys.argv = sys.argv[1:]
sys.path.insert(0, str(pathlib.Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
WORLD_OF_ONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


def check_end(program: Path, options: Sequence[str]) -> None:
    """Runs a program on one rank over gloo, none of whose threads may outlive it.

    Args:
        program: Its file.
        options: Its command line.
    """
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(program), *options],
        env={**without_launcher(os.environ), **WORLD_OF_ONE},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    before, end = (
        next(line for line in ended.stdout.splitlines() if line.startswith(time))
        for time in ("before:", "at the end:")
    )
    assert "gloo" in before
    assert "gloo" not in end
