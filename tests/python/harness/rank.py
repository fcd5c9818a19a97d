"""One rank of a test: what runs in each process that the launcher starts."""

import faulthandler
import gc
import importlib.util
import os
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from harness.footprint import Footprint, wait_for_return

_current: "Setting | None" = None


@dataclass(frozen=True)
class Setting:
    """What is the same on all ranks of one launch.

    Attributes:
        body: Called with rank, world size and ``arguments``; must be importable by name.
        arguments: Further arguments of ``body``.
        world_size: Ranks.
        backend: Of the default group; None: the body makes its groups itself.
        timeout: Of the default group, in seconds.
        limit: Seconds until the stacks of a rank that still runs are logged.
        store: "tcp", in the server of the test session, or "file".
        store_port: Port of that server.
        store_key: Prefix of all keys in it, and file name of a file store.
        directory: Where ranks write: logs, the file store.
        environment: Set before torch.distributed is used.
        checks_footprint: Fail if the process holds more after the groups are gone than before.
        return_limit: Seconds that threads and the like may outlive destroy_process_group().
    """

    body: Callable[..., Any]
    arguments: tuple[Any, ...]
    world_size: int
    backend: str | None
    timeout: float
    limit: float
    store: str
    store_port: int
    store_key: str
    directory: Path
    environment: dict[str, str] = field(default_factory=dict)
    checks_footprint: bool = True
    return_limit: float = 5.0

    def log_of(self, rank: int) -> Path:
        return self.directory / f"rank{rank}.log"


@dataclass(frozen=True)
class Report:
    """How a rank ended: the value its body returned, or the traceback."""

    value: Any = None
    failure: str | None = None


def run_rank(setting: Setting, rank: int, reports: Connection) -> None:
    """Runs the body of one rank and sends one :class:`Report`; ends the process on failure."""
    global _current
    _current = setting
    # What the fork server has loaded is no garbage of a body, and to look through all of it takes
    # the processor a quarter of a second, most of it for copies of its pages.
    gc.freeze()
    _write_output_to(setting.log_of(rank))
    # The stacks of a rank that hangs, a moment before the launcher kills it.
    faulthandler.dump_traceback_later(setting.limit, exit=False)
    os.environ.update(setting.environment)
    tempfile.tempdir = str(setting.directory)
    # Threads of ATen would count as left behind, and ranks outnumber cores.
    torch.set_num_threads(1)
    _silence_progress_bars()
    try:
        report = Report(value=_run_body(setting, rank))
    except BaseException:
        report = Report(failure=traceback.format_exc())
    reports.send(report)
    if report.failure is not None:
        # At once, without destructors: the peers must learn of it and not wait for the timeout.
        sys.stdout.flush()
        os._exit(1)


def _silence_progress_bars() -> None:
    """Has torch's compiler leave no thread and no shared semaphores for progress bars.

    It would where tqdm is installed, as TorchRec's tests need it.
    """
    if importlib.util.find_spec("tqdm") is not None:
        from tqdm import tqdm

        tqdm.monitor_interval = 0
        tqdm.set_lock(threading.RLock())


def _run_body(setting: Setting, rank: int) -> Any:
    store = _open_store(setting, "default")
    before = Footprint.take()
    if setting.backend is not None:
        dist.init_process_group(
            setting.backend,
            store=store,
            rank=rank,
            world_size=setting.world_size,
            timeout=timedelta(seconds=setting.timeout),
        )
    if setting.backend == "gloo":
        dist.barrier()  # a rank that left while others still connect would make them fail
    value = setting.body(rank, setting.world_size, *setting.arguments)
    if dist.is_initialized():
        dist.destroy_process_group()
    if setting.checks_footprint:
        excess = wait_for_return(before, setting.return_limit)
        assert not excess, f"left behind after destroy_process_group: {'; '.join(excess)}"
    return value


def open_store(name: str) -> dist.Store:
    """Connects to the launch's store, for bodies that initialise torch.distributed themselves.

    Args:
        name: Keeps apart the keys of several initialisations in one launch.

    Returns:
        A store of its own, as every initialisation needs fresh keys.
    """
    assert _current is not None, "called outside of a rank"
    return _open_store(_current, name)


def _open_store(setting: Setting, name: str) -> dist.Store:
    if setting.store == "file":
        path = setting.directory / f"{setting.store_key}-{name}"
        return dist.FileStore(str(path), setting.world_size)
    server = dist.TCPStore(
        "127.0.0.1",
        setting.store_port,
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=setting.timeout),
    )
    return dist.PrefixStore(f"{setting.store_key}/{name}", server)


def _write_output_to(log: Path) -> None:
    """Sends output, the C++ side's included, to a file that the launcher shows on failure."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    faulthandler.enable(sys.stderr)
