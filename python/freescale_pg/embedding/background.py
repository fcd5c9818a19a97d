"""A call that goes on beside the caller."""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from freescale_pg._extension import _C


class Background:
    """Runs a call on a thread of its own, which ends with it.

    On a GPU its kernels run on the stream that is current here, in the order in which both threads
    get to launch theirs.

    Args:
        call: What it raises comes out of :meth:`join`.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._error: BaseException | None = None
        self._stream = _on_present_stream()
        self._number = 0  # of the thread, as the system knows it
        # Not a daemon: it holds rows of a table, which must not be half updated when Python ends.
        self._thread = threading.Thread(target=self._run, name="freescale look-ahead")
        self._thread.start()

    def join(self) -> None:
        """Waits for the end of the call, and raises its error; a second time does nothing."""
        begin = time.monotonic_ns()
        self._thread.join()
        _C.note_join(self._number, begin)
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        self._number = threading.get_native_id()
        try:
            with self._stream:
                self._call()
        # Whatever it is: it belongs to the caller.
        except BaseException as error:
            self._error = error


def _on_present_stream() -> AbstractContextManager[object]:
    """Makes the present device and stream current in another thread.

    That one would begin with the default stream of the first device: memory of another stream is
    given to its next owner in the order of that stream alone.
    """
    if not torch.cuda.is_initialized():
        return nullcontext()
    return torch.cuda.stream(torch.cuda.current_stream())
