"""What is tried on a machine, what an answer means, and what to do about it."""

import functools
import importlib.util
import os
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from freescale_pg.diagnosis.facts import Interface, interfaces, rdma_devices
from freescale_pg.diagnosis.links import LinkProbe, probe_link

__all__ = ["CHECKS", "Check", "State"]

State = Literal["ok", "note", "FAILED"]

# A pair of ranks shares two segments, and each group has its own; NCCL, data loaders and files come
# on top.
_ENOUGH_DESCRIPTORS = 4096


@dataclass(frozen=True, slots=True)
class Check:
    """The answer to one question about this machine.

    Attributes:
        name: What was tried.
        state: "ok"; "note": works, but may disappoint, or is not there; "FAILED".
        found: The answer.
        meaning: What that is to the user.
        cure: What to do about it; empty where there is nothing to cure.
    """

    name: str
    state: State
    found: str
    meaning: str
    cure: str = ""


def check_module() -> Check:
    """Whether the C++ module loads into this torch."""
    name = "the C++ module loads"
    try:
        import freescale_pg._extension  # noqa: F401
    except ImportError as error:
        return Check(
            name,
            "FAILED",
            str(error),
            'backend="freescale" cannot be used',
            "install freescale_pg again beside this torch: the module belongs to its version",
        )
    return Check(name, "ok", "yes", 'backend="freescale" is there')


def _probe_shared_memory() -> LinkProbe:
    return probe_link(between_hosts=False)


def check_shared_memory(probe: Callable[[], LinkProbe] = _probe_shared_memory) -> Check:
    """Whether two ranks of this host exchange bytes, and how."""
    name = "two ranks of this host"
    found = probe()
    if not found.works:
        return Check(
            name,
            "FAILED",
            found.reason,
            "ranks of this host cannot work together",
            "look at memory limits of the container, and whether both ranks have the same user",
        )
    if "direct reads proven" not in found.reason:
        return Check(
            name,
            "note",
            found.reason,
            "large messages take two copies instead of one",
            "allow process_vm_readv between the ranks: in a container --cap-add=SYS_PTRACE, or"
            " kernel.yama.ptrace_scope=0",
        )
    return Check(name, "ok", found.reason, "small messages and large ones go the fast way")


@functools.cache
def _probe_network() -> LinkProbe:
    """Once: two questions are about it, and it takes seconds."""
    return probe_link(between_hosts=True)


def check_network(probe: Callable[[], LinkProbe] = _probe_network) -> Check:
    """Whether two ranks that take each other for other hosts' exchange bytes, and how."""
    name = "two ranks over the network"
    found = probe()
    if found.works:
        return Check(name, "ok", found.reason, "jobs may span hosts")
    return Check(
        name,
        "note" if "no UCX was found" in found.reason else "FAILED",
        found.reason,
        "a job on more than this host cannot start; one on this host alone is not concerned",
        "pip install freescale_pg[ucx], or the system's UCX for RDMA; FREESCALE_UCX_LIBRARY names"
        " a certain one, FREESCALE_IFNAME the interface",
    )


def check_rdma(
    devices: Sequence[str] | None = None, probe: Callable[[], LinkProbe] = _probe_network
) -> Check:
    """Whether RDMA devices that are there are used."""
    name = "RDMA"
    there = list(rdma_devices() if devices is None else devices)
    if not there:
        return Check(name, "note", "no device", "hosts are reached by TCP, with the CPU copying")
    found = probe()
    if any(device in found.reason for device in there):
        return Check(name, "ok", found.reason, "bytes between hosts go past the CPU")
    return Check(
        name,
        "note",
        f"{', '.join(there)}, but: {found.reason}",
        "hosts are reached by TCP although there is something faster",
        "the UCX of libucx-cu12 has no RDMA: install the system's (ucx with ib) or nixl-cu12",
    )


def check_interfaces(
    named: str | None = None, there: Sequence[Interface] | None = None
) -> Check | None:
    """Whether the interfaces that FREESCALE_IFNAME names are in operation; None without it."""
    named = os.environ.get("FREESCALE_IFNAME") if named is None else named
    if not named:
        return None
    by_name = {one.name: one for one in (interfaces() if there is None else there)}
    # Devices of RDMA are named here, too, with their port.
    down = [one for one in named.split(",") if one in by_name and not by_name[one].up]
    name = f"FREESCALE_IFNAME={named}"
    if down:
        return Check(
            name,
            "FAILED",
            f"{', '.join(down)} is down",
            "other hosts are not reached over it",
            "bring it up, or name another one",
        )
    return Check(name, "ok", "no interface of them is down", "other hosts are reached over these")


def check_cores() -> Check:
    """Whether this process may use more than one core."""
    cores = len(os.sched_getaffinity(0))
    name = "cores of this process"
    if cores > 1:
        return Check(name, "ok", str(cores), "a rank and its service threads do not wait in line")
    return Check(
        name,
        "note",
        "1",
        "a rank's own threads and those that move its bytes take turns",
        "give each rank two cores or more; look at taskset, numactl and the container's cpuset",
    )


def check_descriptors() -> Check:
    """Whether the limit of descriptors allows for many ranks and groups."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    name = "open descriptors"
    if soft >= _ENOUGH_DESCRIPTORS:
        return Check(name, "ok", f"{soft} allowed", "enough for hundreds of ranks")
    return Check(
        name,
        "note",
        f"{soft} allowed, up to {hard} on demand",
        "with many ranks or data loaders making a group may fail",
        f"ulimit -n {min(hard, 65536)}",
    )


def check_experiments() -> Check | None:
    """Whether the environment slows communication down on purpose; None if not."""
    rate = os.environ.get("FREESCALE_EMULATED_LINK_RATE")
    if rate is None:
        return None
    return Check(
        "FREESCALE_EMULATED_LINK_RATE",
        "note",
        rate,
        "ranks send no faster than this: it is for experiments",
        "unset it for real runs",
    )


def check_cuda() -> Check:
    """Whether CUDA tensors can be exchanged."""
    import torch

    name = "CUDA"
    if torch.version.cuda is None:
        return Check(name, "note", "this torch has none", "CPU tensors alone can be exchanged")
    if not torch.cuda.is_available():
        return Check(
            name,
            "note",
            "no usable device",
            "CPU tensors alone can be exchanged",
            "look at nvidia-smi and CUDA_VISIBLE_DEVICES",
        )
    if importlib.util.find_spec("cuda") is None:
        return Check(
            name,
            "note",
            f"{torch.cuda.device_count()} devices, but no cuda-python",
            "CUDA tensors can be exchanged; freescale_pg.streams cannot be used",
            "pip install freescale_pg[cuda12], or [cuda13]",
        )
    from freescale_pg import streams

    warnings = [text for device in streams.device_info() for text in device.warnings]
    if warnings:
        return Check(name, "note", "; ".join(warnings), "copies may wait for kernels")
    return Check(name, "ok", f"{torch.cuda.device_count()} devices", "CUDA tensors go, too")


# In the order in which one helps to understand the next.
CHECKS: tuple[Callable[[], Check | None], ...] = (
    check_module,
    check_shared_memory,
    check_network,
    check_rdma,
    check_interfaces,
    check_cores,
    check_descriptors,
    check_experiments,
    check_cuda,
)
