"""How much slower matrix products get beside an exchange, and what a step of both takes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from statistics import median

import torch

from gpu_check.ranks.contestant import Contestant, contestants, tell_ratio, timed
from gpu_check.ranks.setting import Setting


@dataclass
class _Times:
    """Seconds of each round."""

    products: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)


class _Products:
    """Matrix products that take about as long as an exchange."""

    def __init__(self, setting: Setting, seconds: float) -> None:
        """Finds out how many; collective."""
        width = 128 if setting.short else 8192
        self._setting = setting
        self._matrix = torch.ones(width, width, device=setting.device)
        if setting.on_gpu:
            self._matrix = self._matrix.bfloat16()
        self._result = torch.empty_like(self._matrix)
        self.count = 1
        self.run()
        one = timed(setting, self.run)
        self.count = max(1, min(1000, round(seconds / one)))

    def run(self) -> float:
        """Seconds until they are done, whatever else the device still does."""
        begin = time.perf_counter()
        for _ in range(self.count):
            torch.mm(self._matrix, self._matrix, out=self._result)
        self._setting.synchronize_stream()
        return time.perf_counter() - begin


def _step(
    setting: Setting,
    entrant: Contestant,
    products: _Products,
    pair: tuple[torch.Tensor, torch.Tensor],
    times: _Times,
) -> None:
    def body() -> None:
        work = entrant.exchange(*pair, async_op=True)
        times.products.append(products.run())
        assert work is not None
        work.wait()

    times.step.append(timed(setting, body))


def run(setting: Setting) -> None:
    """Tells the times alone and beside each contestant, and the ratios."""
    entrants = contestants(setting)
    elements = (1 << 18 if setting.short else 1 << 26) // setting.size * setting.size
    pairs = [entrant.allocate(elements) for entrant in entrants]
    for entrant, pair in zip(entrants, pairs, strict=True):
        entrant.exchange(*pair)
    exchange = timed(setting, lambda: entrants[0].exchange(*pairs[0]))
    setting.fact("exchange of ours alone", exchange * 1e6, "us")
    products = _Products(setting, exchange)
    setting.fact("matrix products", products.count)

    alone: list[float] = []
    times = [_Times() for _ in entrants]
    for _ in range(3 if setting.short else 20):
        timed(setting, lambda: alone.append(products.run()))
        for entrant, pair, own in zip(entrants, pairs, times, strict=True):
            _step(setting, entrant, products, pair, own)
    setting.fact("products alone", median(alone) * 1e6, "us")
    for entrant, own in zip(entrants, times, strict=True):
        slowdowns = [beside / single for beside, single in zip(own.products, alone, strict=True)]
        setting.fact(f"products beside {entrant.name} / alone", median(slowdowns), "x")
        setting.fact(f"products and exchange, {entrant.name}", median(own.step) * 1e6, "us")
    if len(times) > 1:
        tell_ratio(setting, "products beside the exchange", times[0].products, times[1].products)
        tell_ratio(setting, "products and exchange", times[0].step, times[1].step)
