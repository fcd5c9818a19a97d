"""Sets a stage's priority in the functions of TorchRec that call its collectives.

TorchRec gives its collectives no priority, and calls all on one group. Its functions are wrapped,
so that a thread that runs one has the stage's priority meanwhile, whichever thread that is:
autograd runs the backward pass of a CUDA model on its own. On groups that nobody named the
functions do what they did.
"""

import contextlib
import functools
import importlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
import torchrec

from freescale_pg.operators import with_priority
from freescale_pg.torchrec.sites import PEC_BACKWARD, SITES, Site, mark_deferred
from freescale_pg.torchrec.stage import PRIORITIES

AnyFunction = Callable[..., Any]


class _Thread(threading.local):
    """What the current thread does.

    Attributes:
        ahead: It sends ids of a later batch.
    """

    ahead = False


_thread = _Thread()
_lock = threading.Lock()
# How many objects asked for priorities on a group.
_users: "WeakKeyDictionary[dist.ProcessGroup, int]" = WeakKeyDictionary()
# Class, name and what it was, of every function that is wrapped.
_originals: list[tuple[type, str, Any]] = []


def add(groups: Iterable[dist.ProcessGroup]) -> None:
    """Gives the exchanges on these groups their priorities, until :func:`remove`.

    Raises:
        RuntimeError: This TorchRec lacks a function that is to be wrapped.
    """
    with _lock:
        if not _originals:
            _wrap_all()
        for group in groups:
            _users[group] = _users.get(group, 0) + 1


def remove(groups: Iterable[dist.ProcessGroup]) -> None:
    """Takes back one :func:`add`. The last one leaves TorchRec as it was."""
    with _lock:
        for group in groups:
            _users[group] -= 1
            if _users[group] == 0:
                del _users[group]
        if not _users:
            for owner, name, original in _originals:
                setattr(owner, name, original)
            _originals.clear()


@contextlib.contextmanager
def sending_ahead(ahead: bool) -> Iterator[None]:
    """Says whether the ids that this thread sends in the block are of a later batch."""
    previous, _thread.ahead = _thread.ahead, ahead
    try:
        yield
    finally:
        _thread.ahead = previous


def _wrap_all() -> None:
    wrappers: list[tuple[str, str, Callable[[AnyFunction], AnyFunction]]] = [
        (site.owner, site.function, functools.partial(_with_priority_of, site)) for site in SITES
    ]
    wrappers.append((*PEC_BACKWARD, _with_marks))
    # All are found before the first is changed.
    found = [(_class_with(owner, name), name, wrap) for owner, name, wrap in wrappers]
    for owner, name, wrap in found:
        original = vars(owner)[name]
        wrapped = wrap(getattr(owner, name))
        setattr(
            owner, name, staticmethod(wrapped) if isinstance(original, staticmethod) else wrapped
        )
        _originals.append((owner, name, original))


def _class_with(path: str, function: str) -> type:
    module, name = path.rsplit(".", 1)
    try:
        owner: type = getattr(importlib.import_module(f"torchrec.distributed.{module}"), name)
        vars(owner)[function]
    except (ImportError, AttributeError, KeyError):
        version = getattr(torchrec, "__version__", "of unknown version")
        raise RuntimeError(
            f"TorchRec {version} has no torchrec.distributed.{path}.{function};"
            " freescale_pg.torchrec is for TorchRec 1.9"
        ) from None
    return owner


def _with_priority_of(site: Site, original: AnyFunction) -> AnyFunction:
    def with_stage(*arguments: Any, **keywords: Any) -> Any:
        if site.group_of(*arguments, **keywords) not in _users:
            return original(*arguments, **keywords)
        priority = PRIORITIES[site.stage_of(arguments, _thread.ahead)]
        return with_priority(priority, lambda: original(*arguments, **keywords))

    # Two functions, as the compiler cannot trace a thread's priority, nor even hold a Site.
    @functools.wraps(original)
    def call(*arguments: Any, **keywords: Any) -> Any:
        chosen = original if torch.compiler.is_compiling() else with_stage
        return chosen(*arguments, **keywords)

    return call


def _with_marks(original: AnyFunction) -> AnyFunction:
    @functools.wraps(original)
    def call(ctx: Any, *gradients: Any) -> Any:
        result = original(ctx, *gradients)
        mark_deferred(ctx)
        return result

    return call
