"""Plots within a scene: scales, ticks and keys."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from freescale_pg.report.scene import Path, Scene, Text

# Height of a line of small text, and the width of a letter of it, about.
LINE = 18.0
_LETTER = 7.2
_SWATCH = 11.0


@dataclass(frozen=True)
class Axes:
    """Where a plot lies in its scene, and what its edges stand for.

    Attributes:
        scene: That is drawn into.
        left: Edges, in the scene's units.
        top: Likewise.
        right: Likewise.
        bottom: Likewise.
        low: Values at the left and the bottom edge.
        high: Values at the right and the top edge.
        is_log: Whether the horizontal scale is logarithmic.
    """

    scene: Scene
    left: float
    top: float
    right: float
    bottom: float
    low: tuple[float, float]
    high: tuple[float, float]
    is_log: bool = False

    def x(self, value: float) -> float:
        """Returns where a value lies."""
        low, high = self.low[0], self.high[0]
        if self.is_log:
            value, low, high = math.log(value), math.log(low), math.log(high)
        part = (value - low) / (high - low) if high > low else 0.5
        return self.left + part * (self.right - self.left)

    def y(self, value: float) -> float:
        """Returns where a value lies."""
        low, high = self.low[1], self.high[1]
        part = (value - low) / (high - low) if high > low else 0.5
        return self.bottom - part * (self.bottom - self.top)

    def draw_x_ticks(self, ticks: Iterable[float], label: Callable[[float], str]) -> None:
        """Draws lines upward, and what they stand for below."""
        for tick in ticks:
            x = self.x(tick)
            self.scene.line(x, self.top, x, self.bottom)
            self.scene.shapes.append(Text(x, self.bottom + LINE * 0.8, label(tick), "middle"))

    def draw_y_ticks(self, ticks: Iterable[float], label: Callable[[float], str]) -> None:
        """Draws lines across, and what they stand for at the left."""
        for tick in ticks:
            y = self.y(tick)
            self.scene.line(self.left, y, self.right, y)
            self.scene.shapes.append(Text(self.left - 8, y, label(tick), "end"))

    def draw_names(self, x_name: str, y_name: str) -> None:
        """Writes what the axes are: one below the middle, one above the left edge."""
        self.scene.line(self.left, self.bottom, self.right, self.bottom, paint="axis")
        middle = (self.left + self.right) / 2
        self.scene.shapes.append(Text(middle, self.bottom + 2 * LINE, x_name, "middle"))
        self.scene.shapes.append(Text(self.left, self.top - LINE * 0.7, y_name))

    def draw_curve(
        self, points: Sequence[tuple[float, float]], paint: str, *, dashed: bool = False
    ) -> None:
        """Draws a line through values."""
        if len(points) == 1:
            # Of one value there is no line, but a short one across shows it.
            x, y = self.x(points[0][0]), self.y(points[0][1])
            self.scene.line(x - 6, y, x + 6, y, paint=paint, width=2)
        elif points:
            places = tuple((self.x(x), self.y(y)) for x, y in points)
            self.scene.shapes.append(Path(places, paint, 2.0, dashed))


def draw_key(scene: Scene, left: float, y: float, entries: Iterable[tuple[str, str]]) -> None:
    """Draws what colours stand for: names of paints, and what is written beside each.

    An entry without a paint is a word before the others.
    """
    x = left
    for paint, text in entries:
        if paint:
            scene.box(x, y - _SWATCH / 2, _SWATCH, _SWATCH, paint=paint)
            x += _SWATCH + 5
        scene.shapes.append(Text(x, y, text, paint="text"))
        x += _LETTER * len(text) + 14


def ticks_up_to(high: float, about: int = 5) -> list[float]:
    """Returns 0 and multiples of 1, 2 or 5 times a power of ten, up to a value."""
    return ticks_between(0.0, high, about)


def ticks_between(low: float, high: float, about: int = 5) -> list[float]:
    """Returns multiples of 1, 2 or 5 times a power of ten within bounds."""
    if not high > low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= rough)
    # A little beyond, since what is a multiple may be so only to rounding.
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [each * step for each in range(first, last + 1)]


def decades(low: float, high: float) -> list[float]:
    """Returns the powers of ten within bounds."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    return [10.0**power for power in range(first, last + 1)]
