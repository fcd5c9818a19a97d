"""The stand-in driver as a rank's test sees it beside torch (tests/fakes/cuda_driver/control.h)."""

import ctypes
import functools
import os
import time
from collections.abc import Callable
from types import TracebackType

import torch

SUCCESS = 0
GREATER_OR_EQUAL = 0


class State(ctypes.Structure):
    """What goes on in this process at the moment; FakeCudaState of control.h."""

    _fields_ = (
        ("lock_waiters", ctypes.c_int),
        ("draining_launches", ctypes.c_int),
        ("full_queues", ctypes.c_int),
        ("blocked_copies", ctypes.c_int),
        ("running_kernels", ctypes.c_int),
        ("sm_waiters", ctypes.c_int),
        ("polling_waits", ctypes.c_int),
        ("copies_done", ctypes.c_uint64),
        ("reservations", ctypes.c_int),
        ("streams", ctypes.c_int),
    )


@functools.cache
def library() -> ctypes.CDLL:
    """The library that torch is on."""
    loaded = ctypes.CDLL(os.environ["FREESCALE_CUDA_DRIVER"])
    loaded.fake_cuda_state.restype = State
    return loaded


def state() -> State:
    found: State = library().fake_cuda_state()
    return found


def await_state(reached: Callable[[State], bool]) -> None:
    """Waits until the driver is in a state; the launch's limit ends what never is."""
    while not reached(state()):
        time.sleep(0.0005)


def inject(fault: str, argument: int, nth: int = 1) -> None:
    """Makes the ``nth`` occurrence from now on of a fault happen, see the README of the driver.

    The defaults that it names are those of the environment variable; here there are none.
    """
    library().fake_cuda_inject(fault.encode(), nth, argument)


def set_capturing(stream: torch.cuda.Stream, capturing: bool) -> None:
    """Has a stream say that a graph is being captured of it, or no longer."""
    library().fake_cuda_set_capturing(ctypes.c_void_p(stream.cuda_stream), capturing)


def call(name: str, version: int, *arguments: object) -> None:
    """Makes a call of the driver API, in the ABI of a version, in the current context."""
    entry = ctypes.c_void_p()
    library().cuGetProcAddress_v2(
        *(name.encode(), ctypes.byref(entry), version, ctypes.c_uint64(0), None)
    )
    assert entry.value is not None, f"the stand-in driver has no {name}"
    code = ctypes.CFUNCTYPE(ctypes.c_int)(entry.value)(*arguments)
    assert code == SUCCESS, f"{name}: {code}"


class Gate:
    """Holds a stream back: what is enqueued after it was made does not run until it opens.

    Args:
        stream: None: the current one.
    """

    def __init__(self, stream: torch.cuda.Stream | None = None) -> None:
        self._stream = stream or torch.cuda.current_stream()
        self._word = torch.zeros(1, dtype=torch.int32).pin_memory()
        with torch.cuda.device(self._stream.device):
            call(
                *("cuStreamWaitValue32", 11070),
                ctypes.c_void_p(self._stream.cuda_stream),
                ctypes.c_uint64(self._word.data_ptr()),
                ctypes.c_uint32(1),
                ctypes.c_uint32(GREATER_OR_EQUAL),
            )

    def open(self) -> None:
        self._word.fill_(1)

    def __enter__(self) -> "Gate":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Opens it, so that a test that fails does not hang."""
        self.open()
        self._stream.synchronize()
