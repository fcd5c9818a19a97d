"""What there is on this machine, as far as it can be read without trying anything."""

import importlib.metadata
import importlib.util
import os
import platform
import resource
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Fact", "Interface", "facts", "interfaces", "rdma_devices", "settings"]

_NETWORK = Path("/sys/class/net")
_INFINIBAND = Path("/sys/class/infiniband")
_PREFIXES = ("FREESCALE_", "UCX_", "NCCL_", "CUDA_")


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that there is.

    Attributes:
        name: What it is.
        found: How it is here.
    """

    name: str
    found: str


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface.

    Attributes:
        name: As ``FREESCALE_IFNAME`` takes it.
        up: Whether it is in operation.
        mtu: Bytes of a packet at most.
        megabits: Rate in Mbit/s; None where the driver does not say.
    """

    name: str
    up: bool
    mtu: int
    megabits: int | None


def facts() -> list[Fact]:
    """Versions, cores, limits, network devices and settings. Loads neither torch nor a driver."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = [
        Fact("freescale_pg", _version("freescale_pg")),
        Fact("torch", _version("torch")),
        Fact("Python", platform.python_version()),
        Fact("system", f"{platform.system()} {platform.release()} {platform.machine()}"),
        Fact("host", platform.node()),
        Fact("cores of this process", str(len(os.sched_getaffinity(0)))),
        Fact("descriptors of this process", f"{soft} at most"),
    ]
    found += [Fact(f"interface {one.name}", _describe(one)) for one in interfaces()]
    found += [Fact(f"RDMA device {name}", "there") for name in rdma_devices()]
    found += [Fact(f"variable {name}", value) for name, value in settings().items()]
    return found


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "used from its sources" if importlib.util.find_spec(package) else "not installed"


def _describe(interface: Interface) -> str:
    state = "up" if interface.up else "DOWN"
    rate = "rate unknown" if interface.megabits is None else f"{interface.megabits} Mbit/s"
    return f"{state}, {rate}, packets of {interface.mtu} bytes"


def interfaces(folder: Path = _NETWORK) -> list[Interface]:
    """The network interfaces of this process's namespace, by name."""
    found = []
    for place in sorted(folder.iterdir()) if folder.is_dir() else []:
        state = _read(place / "operstate")
        # Loopback interfaces and some virtual ones are up and say "unknown".
        up = state in ("up", "unknown")
        rate = _read(place / "speed")
        megabits = int(rate) if rate is not None and rate.isdigit() and int(rate) > 0 else None
        found.append(Interface(place.name, up, int(_read(place / "mtu") or 0), megabits))
    return found


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None  # drivers without a rate refuse to say it


def rdma_devices(folder: Path = _INFINIBAND) -> list[str]:
    """Names of the InfiniBand, RoCE and EFA devices."""
    return sorted(place.name for place in folder.iterdir()) if folder.is_dir() else []


def settings() -> dict[str, str]:
    """Variables of the environment that change how ranks communicate."""
    return {name: os.environ[name] for name in sorted(os.environ) if name.startswith(_PREFIXES)}
