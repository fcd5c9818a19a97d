"""How long an urgent exchange takes while a large one is in flight."""

from __future__ import annotations

import time
from statistics import median

import freescale_pg as fs
from gpu_check.ranks.contestant import Contestant, contestants, tell_ratio, timed
from gpu_check.ranks.setting import Setting


class _Pair:
    """An urgent and a bulk exchange of one backend, each in a group of its own."""

    def __init__(self, setting: Setting, urgent: Contestant) -> None:
        """Makes the second group; collective."""
        self._setting = setting
        self.name = urgent.name
        self._urgent = urgent
        self._bulk = Contestant(setting, urgent.backend)
        unit = setting.size << 10
        self._small = urgent.allocate(16 * unit)
        self._large = self._bulk.allocate((256 if setting.short else 65536) * unit)

    def alone(self) -> float:
        """Seconds of the urgent one, with nothing beside it; collective."""
        return timed(self._setting, self._exchange_urgent)

    def beside_bulk(self) -> float:
        """Seconds of the urgent one; collective."""
        seconds = 0.0

        def body() -> None:
            nonlocal seconds
            with fs.priority(fs.Priority.BACKGROUND):
                bulk = self._bulk.exchange(*self._large, async_op=True)
            begin = time.perf_counter()
            self._exchange_urgent()
            seconds = time.perf_counter() - begin
            assert bulk is not None
            bulk.wait()

        timed(self._setting, body)
        return seconds

    def _exchange_urgent(self) -> None:
        with fs.priority(fs.Priority.URGENT), self._setting.side_stream():
            self._urgent.exchange(*self._small)
            self._setting.synchronize_stream()


def run(setting: Setting) -> None:
    """Tells the times alone and beside bulk, and the ratios."""
    pairs = [_Pair(setting, entrant) for entrant in contestants(setting)]
    beside: list[list[float]] = [[] for _ in pairs]
    for pair in pairs:
        pair.beside_bulk()
    alone: list[list[float]] = [[] for _ in pairs]
    for _ in range(3 if setting.short else 20):
        for pair, without, with_bulk in zip(pairs, alone, beside, strict=True):
            without.append(pair.alone())
            with_bulk.append(pair.beside_bulk())
    for pair, without, with_bulk in zip(pairs, alone, beside, strict=True):
        setting.fact(f"urgent alone, {pair.name}", median(without) * 1e6, "us")
        setting.fact(f"urgent beside bulk, {pair.name}", median(with_bulk) * 1e6, "us")
        ratios = [loaded / idle for loaded, idle in zip(with_bulk, without, strict=True)]
        setting.fact(f"urgent beside bulk / alone, {pair.name}", median(ratios), "x")
    if len(pairs) > 1:
        tell_ratio(setting, "urgent beside bulk", beside[0], beside[1])
