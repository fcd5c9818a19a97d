"""What a process holds of the machine: descriptors, threads, shared segments."""

import gc
import time
from dataclasses import dataclass
from pathlib import Path

PROCESS = Path("/proc/self")


@dataclass(frozen=True)
class Footprint:
    """One snapshot of this process.

    Attributes:
        descriptors: What each open file descriptor leads to.
        threads: The name of each thread by its id. Those of torch's autograd are left out: it
            starts them on the first backward pass and keeps them. So are those of the stand-in
            driver's streams, most of which are torch's for its life too.
        segments: The mappings of shared memory that has no file: memfd and /dev/shm.
    """

    descriptors: dict[str, str]
    threads: dict[str, str]
    segments: tuple[str, ...]

    @classmethod
    def take(cls) -> "Footprint":
        return cls(_descriptors(), _threads(), _segments())

    def excess(self, before: "Footprint") -> list[str]:
        """Names what this snapshot holds more than an earlier one; empty if nothing."""
        found = []
        if len(self.descriptors) > len(before.descriptors):
            fresh = {fd: to for fd, to in self.descriptors.items() if fd not in before.descriptors}
            found.append(f"file descriptors {fresh}")
        if len(self.threads) > len(before.threads):
            fresh = {tid: name for tid, name in self.threads.items() if tid not in before.threads}
            found.append(f"threads {fresh}")
        if len(self.segments) > len(before.segments):
            found.append(f"shared segments {self.segments}")
        return found


def wait_for_return(before: Footprint, limit: float) -> list[str]:
    """Waits until the process holds no more than ``before``.

    Args:
        before: The snapshot to return to.
        limit: Seconds after which what is still held is a leak. Threads and sockets may take a
            moment to go after the call that ends them.

    Returns:
        What is still held then; empty if nothing.
    """
    # An exception that was caught keeps its frames, and what their variables hold, in a cycle.
    gc.collect()
    deadline = time.monotonic() + limit
    while excess := Footprint.take().excess(before):
        if time.monotonic() > deadline:
            return excess
        time.sleep(0.01)
    return []


def _descriptors() -> dict[str, str]:
    found = {}
    for entry in (PROCESS / "fd").iterdir():
        try:
            target = str(entry.readlink())
        except FileNotFoundError:  # The descriptor of this very listing.
            continue
        found[entry.name] = target
    return found


def _threads() -> dict[str, str]:
    found = {}
    for entry in (PROCESS / "task").iterdir():
        try:
            name = (entry / "comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):  # It ended meanwhile.
            continue
        if not name.startswith(("pt_autograd", "cuda-stream")):
            found[entry.name] = name
    return found


def _segments() -> tuple[str, ...]:
    lines = (PROCESS / "maps").read_text().splitlines()
    return tuple(line for line in lines if "/memfd:" in line or "/dev/shm/" in line)
