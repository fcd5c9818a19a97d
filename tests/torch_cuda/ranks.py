"""Processes with a stand-in device each: how they are started, and what they must give back."""

import gc
import multiprocessing
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import stand_in
from harness.footprint import Footprint, wait_for_return
from harness.launch import GROUP_TIMEOUT, LAUNCH_LIMIT, Launcher
from harness.rank import open_store

# Not the compiler's modules, as harness.launch has them: they look for devices while they are
# imported, and a driver does not survive the fork.
PRELOADED = ["ranks"]


@dataclass(frozen=True)
class Part:
    """What is the same on all ranks.

    Attributes:
        body: Called with rank, world size and ``arguments``.
        arguments: Further arguments of ``body``.
        devices: By rank.
        backend: Of the default group; None: there is none.
        timeout: Of the default group, in seconds.
        return_limit: Seconds within which the process must hold no more than before; None: it need
            not.
    """

    body: Callable[..., Any]
    arguments: tuple[Any, ...]
    devices: tuple[int, ...]
    backend: str | None
    timeout: float
    return_limit: float | None


def start_fork_server(stand_ins: Path) -> None:
    """Prepares a process with torch loaded on the stand-ins, from which ranks are forked.

    Args:
        stand_ins: Folder of the built ``tests/fakes``.
    """
    folder = stand_ins / "cuda_runtime"
    before_all = [folder / "libfake_cudart.so", folder / "libnvidia-ml.so.1"]
    driver = stand_ins / "cuda_driver" / "libcuda.so.1"
    for library in (*before_all, driver):
        assert library.exists(), f"{library} is not built"
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_PRELOAD", ":".join(map(str, before_all)))
        patch.setenv("FREESCALE_CUDA_DRIVER", str(driver))
        # Python up to 3.12.7 does not give the server this process's path (python/cpython#117378).
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        forkserver.ensure_running()


class Ranks:
    """Runs test bodies on new processes.

    Args:
        backend: Of the default group, where a launch names no other.
        directory: For logs and files of the ranks.
    """

    def __init__(self, backend: str, directory: Path) -> None:
        # The ranks meet in a store of the test's process, so that any of them may die.
        self._store = dist.TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60)
        )
        self._launch = Launcher(backend, self._store, directory)

    def __call__(
        self,
        world_size: int,
        body: Callable[..., Any],
        *arguments: Any,
        devices: Sequence[int] | None = None,
        init: bool = True,
        backend: str | None = None,
        timeout: float = GROUP_TIMEOUT,
        limit: float = LAUNCH_LIMIT,
        dies: Collection[int] = (),
        environment: Mapping[str, str] | None = None,
        checks_footprint: bool = True,
        return_limit: float = 5.0,
    ) -> list[Any]:
        """Runs ``body(rank, world_size, *arguments)`` on every rank, its device being current.

        Args:
            world_size: Ranks.
            body: A function at the top level of its module.
            arguments: Further arguments of ``body``.
            devices: The device of each rank; None: each has one of its own.
            init: Make the default group before the body and destroy it after.
            backend: Of the default group; None: that of ``--backend``.
            timeout: Of the default group, in seconds.
            limit: Seconds for the whole launch.
            dies: Ranks that are to die without a report.
            environment: Set in the ranks: what the README of the stand-in driver lists, and more.
            checks_footprint: Whether descriptors, threads, mappings of shared memory (of devices
                too) and streams of the driver must be given back.
            return_limit: Seconds within which they must be.

        Returns:
            The values that the bodies returned, by rank; None for the dead.

        Raises:
            RanksFailed: A rank raised, died, left something behind, or ran into the limit; or one
                of ``dies`` lived. The message has its traceback and output.
        """
        __tracebackhide__ = True
        devices = tuple(range(world_size)) if devices is None else tuple(devices)
        part = Part(
            body=body,
            arguments=arguments,
            devices=devices,
            backend=(backend or self._launch.backend) if init else None,
            timeout=timeout,
            return_limit=return_limit if checks_footprint else None,
        )
        return self._launch(
            run_on_device,
            world_size,
            part,
            init=False,
            limit=limit,
            dies=dies,
            environment={"FAKE_CUDA_DEVICES": str(max(2, *devices) + 1), **(environment or {})},
            checks_footprint=False,
        )


def run_on_device(rank: int, world_size: int, part: Part) -> Any:
    """What each process does."""
    torch.cuda.set_device(part.devices[rank])
    touch_device()
    if part.backend == "freescale":
        touch_backend(rank)
    before, streams = Footprint.take(), stand_in.state().streams
    if part.backend is not None:
        dist.init_process_group(
            part.backend,
            store=open_store("default"),
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=part.timeout),
        )
    value = part.body(rank, world_size, *part.arguments)
    if dist.is_initialized():
        dist.destroy_process_group()
    if part.return_limit is not None:
        drop_caches()
        excess = wait_for_return(before, part.return_limit)
        if (more := stand_in.state().streams - streams) > 0:
            excess.append(f"{more} streams")
        assert not excess, f"left behind: {'; '.join(excess)}"
    return value


def touch_device() -> None:
    """Has torch make what it keeps to its end: the context, the pool of side streams."""
    for device in range(torch.cuda.device_count()):
        with torch.cuda.device(device):
            torch.cuda.Stream()
            torch.cuda.Stream(priority=-1)
            torch.zeros(1).cuda().cpu()
    torch.zeros(1).pin_memory()
    drop_caches()


def touch_backend(rank: int) -> None:
    """Has the backend make what a process keeps to its end: the words that streams look at."""
    dist.init_process_group("freescale", store=open_store(f"alone/{rank}"), rank=0, world_size=1)
    dist.all_to_all_single(torch.empty(1).cuda(), torch.ones(1).cuda())
    dist.destroy_process_group()
    drop_caches()


def drop_caches() -> None:
    """Has torch give back memory that it holds for the next tensor."""
    gc.collect()
    for device in range(torch.cuda.device_count()):
        torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
