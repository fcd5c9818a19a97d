"""The plots of a report."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from freescale_pg.observe.report import TIMES, RankTimes, StepTime
from freescale_pg.report.axes import (
    LINE,
    Axes,
    decades,
    draw_key,
    ticks_between,
    ticks_up_to,
)
from freescale_pg.report.latency import Latency
from freescale_pg.report.run import Imbalance
from freescale_pg.report.scaling import Scaling
from freescale_pg.report.scene import Scene, Text
from freescale_pg.report.traffic import LinkTraffic
from freescale_pg.report.units import amount, count, duration, percent
from freescale_pg.simulate.modes import Mode

WIDTH = 960.0
_LEFT = 76.0
_RIGHT = WIDTH - 28
_KEY = 14.0  # middle of the key's line
_TOP = 52.0

# What a step consists of, from the left to the right.
PARTS = ("compute", "idle", "loader", "stragglers", "communication")
# More steps than these are put together, so many to a column.
_COLUMNS = 160
# More ranks than these make one row and column of several.
_CELLS = 32

MODE_PAINTS = {
    Mode.BASELINE: "baseline",
    Mode.BALANCE: "balance",
    Mode.OVERLAP: "overlap",
    Mode.SM_FREE: "sm_free",
}


def parts_there_are(ranks: Sequence[RankTimes]) -> list[str]:
    """Returns the parts that took any time: a host is never idle, and not all have a loader."""
    return [part for part in PARTS if any(rank.total(TIMES[part]) for rank in ranks)]


def breakdown_figure(ranks: Sequence[RankTimes]) -> Scene:
    """Returns a bar for each rank: where its time went."""
    row = 22.0 if len(ranks) <= _CELLS else 6.0
    bottom = _TOP + row * len(ranks)
    scene = Scene("Where each rank's time went, in percent", WIDTH, bottom + 2.6 * LINE)
    axes = Axes(scene, _LEFT, _TOP, _RIGHT, bottom, (0, 0), (1, 1))
    axes.draw_x_ticks([0, 0.2, 0.4, 0.6, 0.8, 1.0], lambda part: f"{100 * part:.0f} %")
    shown = parts_there_are(ranks)
    draw_key(scene, _LEFT, _KEY, [(part, part) for part in shown])
    for place, rank in enumerate(ranks):
        y = _TOP + row * place
        if row > LINE or place % 8 == 0:
            scene.shapes.append(Text(_LEFT - 8, y + row / 2, f"rank {rank.rank}", "end"))
        whole = rank.total(TIMES["compute"]) + sum(rank.total(TIMES[part]) for part in PARTS[1:])
        x = _LEFT
        for part in shown:
            time = rank.total(TIMES[part])
            width = (_RIGHT - _LEFT) * time / whole if whole else 0.0
            title = f"rank {rank.rank}: {part} {percent(time, whole)}"
            gap = 3.0 if row > LINE else 0.5
            scene.box(x, y + gap, width, row - 2 * gap, paint=part, title=title)
            x += width
    return scene


def steps_figure(ranks: Sequence[RankTimes]) -> Scene:
    """Returns a column for each step: where its time went, on average over the ranks."""
    columns = _step_columns(ranks)
    bottom = 250.0
    scene = Scene("Where the time of each step went, mean of the ranks", WIDTH, bottom + 2.6 * LINE)
    tallest = max(sum(parts.values()) for _, _, parts in columns)
    unit, name = (1e6, "ms") if tallest < 1e10 else (1e9, "s")
    first, last = columns[0][0], columns[-1][1]
    high = (last + 1.0, tallest / unit)
    axes = Axes(scene, _LEFT, _TOP, _RIGHT, bottom, (first, 0.0), high)
    axes.draw_y_ticks(ticks_up_to(tallest / unit), lambda tick: f"{tick:g}")
    for begin, end, parts in columns:
        x, width = axes.x(begin), axes.x(end + 1) - axes.x(begin)
        below = 0.0
        for part, time in parts.items():
            top, base = axes.y((below + time) / unit), axes.y(below / unit)
            steps = f"step {begin}" if begin == end else f"steps {begin} to {end}"
            title = f"{steps}: {part} {duration(time)}"
            gap = min(1.0, width / 8)
            scene.box(x + gap, top, width - 2 * gap, base - top, paint=part, title=title)
            below += time
    for tick in ticks_between(first, last, 8):
        if tick == int(tick):
            x = axes.x(tick + 0.5)
            scene.shapes.append(Text(x, bottom + LINE * 0.8, f"{tick:.0f}", "middle"))
    draw_key(scene, _LEFT, _KEY, [(part, part) for part in columns[0][2]])
    axes.draw_names("step", name)
    return scene


def imbalance_figure(epoch: Imbalance, which: str, before: str) -> Scene:
    """Returns curves over the last batches: before, after, and the least possible.

    Args:
        epoch: The batches.
        which: They are, for the title.
        before: What the first curve is called.
    """
    bottom = 250.0
    title = f"Load of the heaviest rank over the mean, {which}"
    scene = Scene(title, WIDTH, bottom + 2.6 * LINE)
    first = epoch.steps - len(epoch.batches)
    top = max(1.05, float(epoch.batches.max()))
    margin = 0.05 * (top - 1.0)  # or a curve at 1 would lie on the axis
    low = (float(first), 1.0 - margin)
    high = (max(first + 1.0, epoch.steps - 1.0), top + margin)
    axes = Axes(scene, _LEFT, _TOP, _RIGHT, bottom, low, high)
    axes.draw_y_ticks(ticks_between(1.0, high[1]), lambda tick: f"{tick:.4g}")
    whole = [tick for tick in ticks_between(low[0], high[0], 8) if tick == int(tick)]
    axes.draw_x_ticks(whole, lambda tick: f"{tick:.0f}")
    for column, (paint, is_dashed) in enumerate(
        (("before", False), ("after", False), ("floor", True))
    ):
        values = epoch.batches[:, column].tolist()
        points = [(float(first + place), value) for place, value in enumerate(values)]
        axes.draw_curve(points, paint, dashed=is_dashed)
    names = (("before", before), ("after", "balanced"), ("floor", "floor"))
    draw_key(scene, _LEFT, _KEY, names)
    axes.draw_names("batch", "heaviest over mean")
    return scene


def links_figure(traffic: Sequence[LinkTraffic]) -> Scene:
    """Returns a matrix: a row for who sends, a column for who receives; the more, the darker."""
    ranks = 1 + max(max(each.source, each.target) for each in traffic)
    block = -(-ranks // _CELLS)
    cells = -(-ranks // block)
    sums = np.zeros((cells, cells))
    for each in traffic:
        sums[each.source // block, each.target // block] += each.total_bytes
    size = min(56.0, 520.0 / cells)
    top = 40.0
    scene = Scene("Bytes from each rank to each other one", WIDTH, top + size * cells + 14)
    left = _LEFT + 40
    scene.shapes.append(Text(left, 10, "receives", paint="text"))
    scene.shapes.append(Text(left - 12, 10, "sends", "end", paint="text"))
    every = 1 if size >= LINE else math.ceil(LINE / size)
    most = float(sums.max()) or 1.0
    for place in range(cells):
        name = _block_name(place * block, block, ranks)
        middle = size * (place + 0.5)
        if place % every == 0:
            scene.shapes.append(Text(left - 12, top + middle, name, "end"))
            short = name.removeprefix("rank ") if size < 52 else name
            scene.shapes.append(Text(left + middle, top - 10, short, "middle"))
    for row in range(cells):
        for column in range(cells):
            _draw_cell(scene, left, top, size, block, (row, column, ranks), sums, most)
    return scene


def _draw_cell(
    scene: Scene,
    left: float,
    top: float,
    size: float,
    block: int,
    place: tuple[int, int, int],
    sums: npt.NDArray[np.float64],
    most: float,
) -> None:
    row, column, ranks = place
    x, y = left + size * column, top + size * row
    here = float(sums[row, column])
    gap = 1.0 if size > 8 else 0.25
    scene.box(x + gap, y + gap, size - 2 * gap, size - 2 * gap, paint="panel")
    if row == column and block == 1:
        return
    names = (_block_name(row * block, block, ranks), _block_name(column * block, block, ranks))
    title = f"{names[0]} to {names[1]}: {amount(here)}"
    # From 0.12 on, so that little is not nothing.
    opacity = 0.12 + 0.88 * here / most if here else 0.0
    scene.box(
        x + gap,
        y + gap,
        size - 2 * gap,
        size - 2 * gap,
        paint="accent",
        title=title,
        opacity=opacity,
    )
    if size >= 50:
        paint = "surface" if opacity > 0.55 else "text"
        middle = (x + size / 2, y + size / 2)
        scene.shapes.append(Text(*middle, amount(here), "middle", paint, 10))


def _block_name(first: int, block: int, ranks: int) -> str:
    last = min(first + block, ranks) - 1
    return f"rank {first}" if first == last else f"ranks {first}–{last}"


def latency_figure(found: Sequence[Latency]) -> Scene:
    """Returns for each priority the part of its calls that was over within a time."""
    bottom = 280.0
    scene = Scene("Calls that were over within a time, by priority", WIDTH, bottom + 2.6 * LINE)
    # A call that took no time cannot be on this scale.
    shortest = max(1.0, min(float(each.whole[0]) for each in found))
    longest = max(shortest * 10, max(float(each.whole[-1]) for each in found))
    low = 10.0 ** math.floor(math.log10(shortest))
    high = 10.0 ** math.ceil(math.log10(longest))
    axes = Axes(scene, _LEFT, _TOP, _RIGHT, bottom, (low, 0.0), (high, 1.0), is_log=True)
    axes.draw_x_ticks(decades(low, high), _round_duration)
    axes.draw_y_ticks([0, 0.25, 0.5, 0.75, 1.0], lambda part: f"{100 * part:.0f} %")
    for each in reversed(found):  # the most urgent on top
        axes.draw_curve(_steps_of(each, low), each.priority)
    draw_key(scene, _LEFT, _KEY, [(each.priority, each.priority) for each in found])
    axes.draw_names("from the call to its end", "calls")
    return scene


def _steps_of(latency: Latency, low: float) -> list[tuple[float, float]]:
    """The distribution by percentiles: thousands of calls make no longer a curve than these."""
    parts = np.linspace(0, 1, min(201, max(2, len(latency.whole))))
    times = np.maximum(np.quantile(latency.whole, parts, method="inverted_cdf"), low)
    return list(zip(times.tolist(), parts.tolist(), strict=True))


def _round_duration(nanoseconds: float) -> str:
    return duration(nanoseconds).replace(".00", "").replace(".0", "")


def scaling_figure(scaling: Scaling) -> Scene:
    """Returns bars: the bubble in each mode, by number of ranks."""
    bottom = 270.0
    scene = Scene("Simulated bubble by number of ranks and mode", WIDTH, bottom + 2.6 * LINE)
    bubbles = [100 * point.bubble for points in scaling.points.values() for point in points]
    high = max(1.0, 1.12 * max(bubbles))
    groups = len(scaling.points)
    axes = Axes(scene, _LEFT, _TOP, _RIGHT, bottom, (0.0, 0.0), (float(groups), high))
    axes.draw_y_ticks(ticks_up_to(high), lambda tick: f"{tick:g} %")
    for place, (ranks, points) in enumerate(scaling.points.items()):
        width = (axes.x(1) - axes.x(0)) * 0.8 / len(points)
        for number, point in enumerate(points):
            x = axes.x(place + 0.1) + number * width
            top = axes.y(100 * point.bubble)
            title = f"{ranks} ranks, {point.mode.value}: bubble {percent(point.bubble)}"
            paint = MODE_PAINTS[point.mode]
            scene.box(x + 2, top, width - 4, bottom - top, paint=paint, title=title)
            label = f"{100 * point.bubble:.2g}"
            scene.shapes.append(Text(x + width / 2, top - 8, label, "middle", size=11))
        middle = axes.x(place + 0.5)
        scene.shapes.append(Text(middle, bottom + LINE * 0.8, count(ranks), "middle"))
    draw_key(scene, _LEFT, _KEY, [(paint, mode.value) for mode, paint in MODE_PAINTS.items()])
    axes.draw_names("ranks", "bubble")
    return scene


def _step_columns(ranks: Sequence[RankTimes]) -> list[tuple[int, int, Mapping[str, float]]]:
    """First and last step of each column, and the mean times of a step and rank by part."""
    by_number: dict[int, list[StepTime]] = {}
    for rank in ranks:
        for step in rank.steps:
            by_number.setdefault(step.number, []).append(step)
    numbers = sorted(by_number)
    shown = parts_there_are(ranks)
    width = -(-len(numbers) // _COLUMNS)
    columns: list[tuple[int, int, Mapping[str, float]]] = []
    for place in range(0, len(numbers), width):
        held = numbers[place : place + width]
        steps = [step for number in held for step in by_number[number]]
        parts = {part: sum(map(TIMES[part], steps)) / len(steps) for part in shown}
        columns.append((held[0], held[-1], parts))
    return columns
