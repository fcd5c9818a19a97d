"""Streams of the CUDA driver's with a priority, as streams of torch."""

import os
import weakref
from contextlib import suppress

import torch

from freescale_pg.streams.driver import Driver

# Does not wait for the default stream, nor that one for it.
_NON_BLOCKING = 1

Device = int | str | torch.device | None


def priority_range(device: Device = None) -> tuple[int, int]:
    """Returns the least and the greatest priority of a device's streams.

    A lower number is more urgent: ``(0, -5)`` on GPUs of today. Both are 0 on a device that
    knows no priorities.

    Args:
        device: As for torch's functions; None: torch's current device.

    Raises:
        ImportError: There is no cuda-python, no driver or no GPU.
        ValueError: There is no such device.
        RuntimeError: The driver failed.
    """
    driver = Driver()
    return _range(driver, _ordinal(driver, device))


def priority_stream(priority: int, device: Device = None) -> torch.cuda.ExternalStream:
    """Makes a non-blocking stream of exactly this priority; its kernels go before less urgent ones.

    It orders kernels that wait for a place on the device, nothing else: not copies, and not the
    collectives of this package, whose priority is :class:`freescale_pg.Priority`.

    The stream is destroyed with the object that is returned, once its work is done. So keep the
    object while the stream is used under another name: ``torch.cuda.current_stream()`` inside of
    ``with torch.cuda.stream(...)`` does not hold it, nor does ``Tensor.record_stream``.

    Args:
        priority: Between the two of :func:`priority_range`. torch's own streams know fewer levels,
            and clamp.
        device: As for torch's functions; None: torch's current device.

    Raises:
        ImportError: There is no cuda-python, no driver or no GPU.
        TypeError: ``priority`` is no whole number.
        ValueError: It is out of the device's range, or there is no such device.
        RuntimeError: torch is built without CUDA, or the driver failed.
    """
    driver = Driver()
    ordinal = _ordinal(driver, device)
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise TypeError(f"priority must be a whole number, got {priority!r}")
    least, greatest = _range(driver, ordinal)
    if not greatest <= priority <= least:
        raise ValueError(
            f"priority {priority} is not one of device {ordinal}, whose least is {least} and whose"
            f" greatest is {greatest}"
        )
    if not torch.backends.cuda.is_built():
        raise RuntimeError(f"torch {torch.__version__} is built without CUDA, and has no streams")
    owned = _OwnedStream(driver, ordinal, priority)
    try:
        stream = torch.cuda.ExternalStream(owned.handle, device=torch.device("cuda", ordinal))
    except BaseException:
        owned.destroy()
        raise
    # Not at the end of the process, which frees everything, while torch may still use the stream.
    weakref.finalize(stream, owned.destroy).atexit = False
    return stream


class _OwnedStream:
    """A stream and its hold on the device's context."""

    def __init__(self, driver: Driver, ordinal: int, priority: int) -> None:
        self._driver = driver
        self._ordinal = ordinal
        self._process = os.getpid()
        self._device = driver.call("cuDeviceGet", ordinal)
        driver.call("cuDevicePrimaryCtxRetain", self._device)
        try:
            with driver.primary_context(ordinal):
                stream = driver.call("cuStreamCreateWithPriority", _NON_BLOCKING, priority)
        except BaseException:
            driver.call("cuDevicePrimaryCtxRelease", self._device)
            raise
        self.handle = int(stream)
        self._stream = stream

    def destroy(self) -> None:
        if os.getpid() != self._process:
            return  # No call works in a fork, whose parent has the stream.
        # Fails only where the context has failed, and has taken its streams along.
        with suppress(RuntimeError):
            with self._driver.primary_context(self._ordinal):
                self._driver.call("cuStreamDestroy", self._stream)
            self._driver.call("cuDevicePrimaryCtxRelease", self._device)


def _range(driver: Driver, ordinal: int) -> tuple[int, int]:
    with driver.primary_context(ordinal):
        least, greatest = driver.call("cuCtxGetStreamPriorityRange")
    return int(least), int(greatest)


def _ordinal(driver: Driver, device: Device) -> int:
    """The driver's number of a device, which is torch's too."""
    index = device if isinstance(device, int) else _index(device)
    if index is None:
        index = torch.cuda.current_device() if torch.backends.cuda.is_built() else 0
    count = driver.call("cuDeviceGetCount")
    if not 0 <= index < count:
        raise ValueError(f"there is no device {index}; this process sees {count}")
    return index


def _index(device: str | torch.device | None) -> int | None:
    if device is None:
        return None
    named = torch.device(device)
    if named.type != "cuda":
        raise ValueError(f"{device!r} is no CUDA device")
    return named.index
