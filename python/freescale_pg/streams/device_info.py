"""What each GPU and its driver can do, as far as it matters to collectives by copy engines."""

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, cast

from freescale_pg.streams.driver import Driver


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that is known of a device.

    Attributes:
        name: That of the field of :class:`DeviceInfo`.
        value: What it is on this device.
        meaning: What follows from it.
    """

    name: str
    value: object
    meaning: str


def _fact(meaning: str) -> Any:
    return field(metadata={"meaning": meaning})


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device, as :func:`device_info` found it; ``print`` shows a table with what it all means.

    Attributes:
        ordinal: Number in this process.
        name: As the driver calls it.
        uuid: What ``nvidia-smi -L`` shows behind ``GPU-`` or ``MIG-``.
        compute_capability: Major and minor number.
        copy_engines: How many there are.
        stream_priorities: Whether streams have priorities.
        peers: Ordinals of the devices whose memory it reaches: its row of the matrix of peers.
        word_operations: Whether streams wait for and write words of memory.
        virtual_memory: Whether memory can be mapped piece by piece.
        posix_handles: Whether such memory can be given away as a file descriptor.
        fabric_handles: Whether it can be given to other hosts.
        driver_version: The newest CUDA that the driver supports, major and minor number.
        batch_copy: Whether it takes many copies in one call.
        local_copies_on_engines: Whether copies within the device can leave the SMs alone.
        warnings: What in this process's environment will hurt, and what to do.
    """

    ordinal: int = _fact("torch's cuda:N; CUDA_VISIBLE_DEVICES decides")
    name: str = _fact("model")
    uuid: str = _fact("the same in every process, whatever CUDA_VISIBLE_DEVICES says")
    compute_capability: tuple[int, int] = _fact("generation")
    copy_engines: int = _fact(
        "copy beside the SMs; those of one direction share an engine, in no order of priority"
    )
    stream_priorities: bool = _fact("kernels of urgent streams go first; copies never do")
    peers: tuple[int, ...] = _fact(
        "reached directly (P2P); copies to other devices go through memory of the host"
    )
    word_operations: bool = _fact(
        "streams wait for and write words without a kernel, by default since driver 11.7"
    )
    virtual_memory: bool = _fact("cuMemMap, which torch's expandable segments need")
    posix_handles: bool = _fact("such memory can be mapped by other processes of the host")
    fabric_handles: bool = _fact("such memory can be mapped by other hosts of one NVLink domain")
    driver_version: tuple[int, int] = _fact("newest CUDA that the driver supports")
    batch_copy: bool = _fact(
        "cuMemcpyBatchAsync, since driver 12.8; without it each copy is a call"
    )
    local_copies_on_engines: bool = _fact(
        "copies within the device can use a copy engine, since driver 13.1; else they take SMs"
    )
    warnings: tuple[str, ...] = _fact("what in the environment will hurt")

    def facts(self) -> list[Fact]:
        """Returns every field with what it means, in their order."""
        return [
            Fact(known.name, getattr(self, known.name), known.metadata["meaning"])
            for known in fields(self)
        ]

    def __str__(self) -> str:
        """A table for people: a line for each fact, then the warnings."""
        lines = [
            f"{fact.name:<24} {_text(fact):<37} {fact.meaning}"
            for fact in self.facts()
            if fact.name != "warnings"
        ]
        return "\n".join(lines + [f"warning: {warning}" for warning in self.warnings])


def device_info() -> list[DeviceInfo]:
    """Returns what the driver says of each device that this process sees, by ordinal.

    Makes no context, so it costs no memory on the devices.

    Raises:
        ImportError: There is no cuda-python, no driver or no GPU.
        RuntimeError: The driver failed.
    """
    driver = Driver()
    number = int(driver.call("cuDriverGetVersion"))
    version = (number // 1000, number % 1000 // 10)
    count = driver.call("cuDeviceGetCount")
    devices = [driver.call("cuDeviceGet", ordinal) for ordinal in range(count)]
    return [_describe(driver, version, devices, ordinal) for ordinal in range(count)]


def _describe(
    driver: Driver, version: tuple[int, int], devices: list[Any], ordinal: int
) -> DeviceInfo:
    device = devices[ordinal]

    def can(attribute: str) -> bool:
        return driver.attribute(device, attribute) != 0

    return DeviceInfo(
        ordinal=ordinal,
        name=driver.call("cuDeviceGetName", 256, device).split(b"\0")[0].decode(),
        uuid=_uuid(driver, device),
        compute_capability=(
            driver.attribute(device, "COMPUTE_CAPABILITY_MAJOR"),
            driver.attribute(device, "COMPUTE_CAPABILITY_MINOR"),
        ),
        copy_engines=driver.attribute(device, "ASYNC_ENGINE_COUNT"),
        stream_priorities=can("STREAM_PRIORITIES_SUPPORTED"),
        peers=tuple(
            peer
            for peer, other in enumerate(devices)
            if peer != ordinal and driver.call("cuDeviceCanAccessPeer", device, other)
        ),
        # The attribute that says so is about the older operations, which are off by default.
        word_operations=version >= (11, 7),
        virtual_memory=can("VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"),
        posix_handles=can("HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED"),
        fabric_handles=can("HANDLE_TYPE_FABRIC_SUPPORTED"),
        driver_version=version,
        batch_copy=version >= (12, 8),
        local_copies_on_engines=version >= (13, 1),
        warnings=tuple(_warnings(os.environ)),
    )


def _uuid(driver: Driver, device: object) -> str:
    # Of version 12 only the second tells the parts of a divided device (MIG) apart; in 13 it has
    # the first one's name.
    second = "cuDeviceGetUuid_v2"
    found = driver.call(second if driver.has(second) else "cuDeviceGetUuid", device)
    return str(uuid.UUID(bytes=bytes(found.bytes)))


def _warnings(environment: Mapping[str, str]) -> list[str]:
    found = []
    if environment.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1":
        found.append(
            "CUDA_DEVICE_MAX_CONNECTIONS=1: all streams share one queue to the device, so a stream"
            " that waits for another rank holds kernels up (NVIDIA/nccl#2238); unset it"
        )
    if environment.get("CUDA_MODULE_LOADING") != "EAGER":
        found.append(
            "kernels are loaded when they are first launched, which waits for the device and holds"
            " the driver's lock: copies of other threads wait, and may be what the device waits for"
            " (pytorch/torchcomms#2334, microsoft/mscclpp#394); set CUDA_MODULE_LOADING=EAGER"
        )
    return found


def _text(fact: Fact) -> str:
    if fact.name in ("compute_capability", "driver_version"):
        return ".".join(str(part) for part in cast(tuple[int, int], fact.value))
    if isinstance(fact.value, tuple):
        return ", ".join(str(part) for part in fact.value) or "none"
    if isinstance(fact.value, bool):
        return "yes" if fact.value else "no"
    return str(fact.value)
