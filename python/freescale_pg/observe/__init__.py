"""Where the time goes: bubbles of training steps, and traces of every message.

:class:`BubbleMeter` measures while a training runs; :func:`read_traces` finds the same in traces of
``torch.profiler``, of any backend, as does the command ``freescale bubbles``. :func:`trace` records
what this backend moves, for Perfetto. ``docs/bubbles.md`` tells how to use them.
:func:`record_run` writes both into a directory, of which ``freescale report`` makes a page
(``docs/report.md``).

Reading traces needs no torch, so the names that do are loaded when first used.
"""

import importlib
from typing import TYPE_CHECKING

from freescale_pg.observe.bubbles import read_traces
from freescale_pg.observe.report import Blocked, BubbleReport, RankTimes, StepTime

if TYPE_CHECKING:
    from freescale_pg.observe.meter import BubbleMeter
    from freescale_pg.observe.recorder import RunRecorder, record_run
    from freescale_pg.observe.tracing import trace

__all__ = [
    "Blocked",
    "BubbleMeter",
    "BubbleReport",
    "RankTimes",
    "RunRecorder",
    "StepTime",
    "read_traces",
    "record_run",
    "trace",
]

_HOMES = {
    "BubbleMeter": "meter",
    "RunRecorder": "recorder",
    "record_run": "recorder",
    "trace": "tracing",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
