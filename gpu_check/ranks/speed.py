"""How long an exchange takes per size, compared with the reference in the same run."""

from __future__ import annotations

from functools import partial
from statistics import median

from gpu_check.ranks.contestant import Contestant, contestants, tell_ratio, timed
from gpu_check.ranks.setting import Setting
from gpu_check.ranks.trace import Trace


def _size_text(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def _measure(
    setting: Setting, entrants: list[Contestant], size: int, rounds: int
) -> list[list[float]]:
    """Seconds of each round, by contestant."""
    elements = size // 4 // setting.size * setting.size
    pairs = [entrant.allocate(elements) for entrant in entrants]
    times: list[list[float]] = [[] for _ in entrants]
    for number in range(rounds + 1):
        for entrant, pair, own in zip(entrants, pairs, times, strict=True):
            seconds = timed(setting, partial(entrant.exchange, *pair))
            # Each size is new to a contestant once.
            if number > 0:
                own.append(seconds)
    return times


def _tell_kernels(setting: Setting, reference: Contestant) -> None:
    """NCCL falls back to kernels without a word where it cannot use copy engines."""
    pair = reference.allocate(setting.size << 20)
    reference.exchange(*pair)
    trace = Trace(setting, lambda: reference.exchange(*pair))
    setting.fact(f"kernels of one exchange of {reference.name}", trace.kernels())


def run(setting: Setting) -> None:
    """Tells time, rate and ratio for each size."""
    entrants = contestants(setting)
    if len(entrants) > 1:
        _tell_kernels(setting, entrants[1])
    largest = 256 << 10 if setting.short else 256 << 20
    size = 4 << 10
    while size <= largest:
        times = _measure(setting, entrants, size, rounds=3 if setting.short else 20)
        for entrant, own in zip(entrants, times, strict=True):
            name = f"{_size_text(size)} a rank, {entrant.name}"
            setting.fact(name, median(own) * 1e6, "us")
            sent = size * (setting.size - 1) / setting.size
            setting.fact(f"{name}, rate to others", sent / median(own) / 1e9, "GB/s")
        if len(times) > 1:
            tell_ratio(setting, f"{_size_text(size)} a rank", times[0], times[1])
        size *= 4
