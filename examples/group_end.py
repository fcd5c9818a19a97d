"""Ends a process group with its threads: on gloo, one that is left may abort the program.

A thread of gloo asks for the interpreter's lock to let go of a tensor, maybe long after the
collective. One that asks when the interpreter is ending aborts the process. A group waits for its
threads when nothing refers to it any more; DDP does until garbage is collected.
"""

import atexit
import gc

import torch.distributed as dist

# DDP imports both. Imported when there is a group, they would keep it for ever: it is the default
# argument of functions there.
import torch.distributed.nn
import torch.distributed.optim  # noqa: F401


def end_group() -> None:
    """Destroys the default group, and has its threads end before the interpreter does."""
    kept = [dist.group.WORLD]

    def wait_for_threads() -> None:
        gc.collect()
        # After all else: only Python's own reference lets go of the lock while it waits.
        kept.clear()

    atexit.register(wait_for_threads)
    dist.destroy_process_group()
