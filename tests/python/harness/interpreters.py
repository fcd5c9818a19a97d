"""Ranks as plain Python programs: for what happens when an interpreter ends."""

import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

PREAMBLE = """
import os, signal, sys, time
import torch
import torch.distributed as dist

rank, size = int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group(
    "freescale", init_method="file://" + sys.argv[1], rank=rank, world_size=size
)
total = torch.ones(1)
dist.all_reduce(total)
assert float(total) == size
"""
# Seconds: far less than the group's timeout of half an hour, and enough for eight imports of torch
# on a busy machine.
END_LIMIT = 200.0


def without_launcher(environment: Mapping[str, str]) -> dict[str, str]:
    """What is left without a rank's place, which would make a rank of every program started."""
    places = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")
    return {name: value for name, value in environment.items() if name not in places}


class Interpreters:
    """The same program on every rank; all are killed when the block ends.

    Args:
        directory: For the program and the file by which ranks meet.
        ending: What follows after a first collective; knows ``rank``, ``size`` and ``total``.
        size: Ranks.
        arguments: In ``sys.argv[4:]``.
        streams: As for :class:`subprocess.Popen`.
    """

    def __init__(
        self, directory: Path, ending: str, size: int = 2, *arguments: str, **streams: int
    ) -> None:
        source = directory / "program.py"
        source.write_text(PREAMBLE + textwrap.dedent(ending))
        meeting = str(directory / "meeting")
        streams = streams or {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.processes = [
            subprocess.Popen(
                [sys.executable, str(source), meeting, str(rank), str(size), *arguments],
                text=True,
                **streams,
            )
            for rank in range(size)
        ]

    def __enter__(self) -> "Interpreters":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    def expect_end(self, rank: int, code: int) -> str:
        """Waits for the end of a rank; returns what it wrote."""
        output, errors = self.processes[rank].communicate(timeout=END_LIMIT)
        text = f"{output or ''}{errors or ''}"
        assert self.processes[rank].returncode == code, (rank, text)
        return text
