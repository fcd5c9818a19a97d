"""Ranks that come late to a collective, after the others are known to wait for them."""

import threading
import time
from collections.abc import Callable

import torch.distributed as dist

from freescale_pg import _C, debug


def is_posted(op: str) -> bool:
    """Whether this rank's last call of ``op`` is in flight, and the others were told of it.

    The engine has looked once then, so it takes who comes later for a straggler.
    """
    records = [record for record in debug.dump()["records"] if record["op"] == op]
    return bool(records) and "waits_for" in records[-1]


def tell_when_blocked(op: str, key: str, settle: Callable[[], object]) -> threading.Thread:
    """Sets a key in the store once a thread of this rank is blocked in ``op``, after ``settle``."""
    store = dist.distributed_c10d._get_default_store().clone()

    def look() -> None:
        while not (_C.blocked_threads() > 0 and is_posted(op)):
            time.sleep(0.001)
        settle()
        store.set(key, "")

    thread = threading.Thread(target=look)
    thread.start()
    return thread


def call_last(
    rank: int,
    size: int,
    op: str,
    call: Callable[[], object],
    key: str,
    settle: Callable[[], object] = lambda: None,
) -> None:
    """Calls on all ranks; on the last one only when all others are blocked in the call.

    Args:
        rank: This one.
        size: Of the group.
        op: What is called, by its name in the flight recorder.
        call: Calls it.
        key: In the store, of this call alone.
        settle: What else has to be over on those that are blocked before the last one calls.
    """
    if rank == size - 1:
        store = dist.distributed_c10d._get_default_store()
        store.wait([f"{key} {other}" for other in range(size - 1)])
        call()
        return
    watcher = tell_when_blocked(op, f"{key} {rank}", settle)
    call()
    watcher.join()
