"""The CUDA driver, through cuda-python."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_NEEDS = (
    "freescale_pg.streams needs an NVIDIA GPU with its driver, and cuda-python:"
    " pip install 'freescale_pg[cuda13]', or 'freescale_pg[cuda12]' beside a torch for CUDA 12"
)


class Driver:
    """The driver of this process, initialised.

    Raises:
        ImportError: There is no cuda-python, no driver or no GPU.
    """

    def __init__(self) -> None:
        # Here, so that functions and their documentation exist without it.
        try:
            from cuda.bindings import driver
        except ImportError as error:
            raise ImportError(f"{_NEEDS}. cuda-python does not load: {error}") from error
        self._bindings: Any = driver
        try:
            self.call("cuInit", 0)
        except RuntimeError as error:
            # From cuda-python itself where it finds no libcuda.so.1.
            raise ImportError(f"{_NEEDS}. The driver does not start: {error}") from error

    def call(self, name: str, *arguments: object) -> Any:
        """Makes a call, and returns what it gives beside its code: a value, or a tuple of several.

        Raises:
            RuntimeError: The call failed; names it and the error.
        """
        code, *values = getattr(self._bindings, name)(*arguments)
        if code != self._bindings.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{name}: {code.name} ({int(code)})")
        return values[0] if len(values) == 1 else tuple(values)

    def has(self, name: str) -> bool:
        """Whether this cuda-python has a call of that name; versions 12 and 13 differ."""
        return hasattr(self._bindings, name)

    def attribute(self, device: object, name: str) -> int:
        """Returns an attribute of a device; 0 if it is younger than the driver.

        Args:
            device: What ``cuDeviceGet`` returned.
            name: Without the ``CU_DEVICE_ATTRIBUTE_`` before it.
        """
        attribute = getattr(self._bindings.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        code, value = self._bindings.cuDeviceGetAttribute(attribute, device)
        if code == self._bindings.CUresult.CUDA_ERROR_INVALID_VALUE:
            return 0
        if code != self._bindings.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"cuDeviceGetAttribute of {name}: {code.name} ({int(code)})")
        return int(value)

    @contextmanager
    def primary_context(self, ordinal: int) -> Iterator[None]:
        """Has the context that torch uses as well current in the block."""
        device = self.call("cuDeviceGet", ordinal)
        context = self.call("cuDevicePrimaryCtxRetain", device)
        try:
            self.call("cuCtxPushCurrent", context)
            try:
                yield
            finally:
                self.call("cuCtxPopCurrent")
        finally:
            self.call("cuDevicePrimaryCtxRelease", device)
