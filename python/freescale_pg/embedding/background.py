"""A call that goes on beside the caller."""

import threading
from collections.abc import Callable


class Background:
    """Runs a call on a thread of its own, which ends with it.

    Args:
        call: What it raises comes out of :meth:`join`.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._error: BaseException | None = None
        # Not a daemon: it holds rows of a table, which must not be half updated when Python ends.
        self._thread = threading.Thread(target=self._run, name="freescale look-ahead")
        self._thread.start()

    def join(self) -> None:
        """Waits for the end of the call, and raises its error; a second time does nothing."""
        self._thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        try:
            self._call()
        # Whatever it is: it belongs to the caller.
        except BaseException as error:
            self._error = error
