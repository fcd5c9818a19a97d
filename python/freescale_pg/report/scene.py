"""A drawing as a list of shapes, from which both SVG and PNG are made; y grows downward."""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class Box:
    """A filled rectangle.

    Attributes:
        x: Of its left side.
        y: Of its top.
        width: In the scene's units.
        height: Likewise.
        paint: Name of a colour in the palette.
        title: Shown when it is pointed at; empty: nothing.
        opacity: 0 to 1.
    """

    x: float
    y: float
    width: float
    height: float
    paint: str
    title: str = ""
    opacity: float = 1.0


@dataclass(frozen=True, slots=True)
class Path:
    """A line through points.

    Attributes:
        points: (x, y) each, two or more.
        paint: Name of a colour in the palette.
        width: Of the line.
        is_dashed: Whether it has gaps.
        title: Shown when it is pointed at; empty: nothing.
    """

    points: tuple[tuple[float, float], ...]
    paint: str
    width: float = 1.0
    is_dashed: bool = False
    title: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """A line of text.

    Attributes:
        x: Of the anchor.
        y: Of the middle of its height.
        text: What it says.
        anchor: Which part of it is at x.
        paint: Name of a colour in the palette.
        size: Of its letters.
    """

    x: float
    y: float
    text: str
    anchor: Literal["start", "middle", "end"] = "start"
    paint: str = "muted"
    size: float = 12.0


Shape: TypeAlias = Box | Path | Text


@dataclass
class Scene:
    """A drawing.

    Attributes:
        title: What it shows, in a line: its name for who does not see it.
        width: In pixels, of which a page may make more or less.
        height: Likewise.
        shapes: From the bottom up.
    """

    title: str
    width: float
    height: float
    shapes: list[Shape] = field(default_factory=list)

    def box(self, *place: float, paint: str, title: str = "", opacity: float = 1.0) -> None:
        """Adds a :class:`Box` of x, y, width and height."""
        x, y, width, height = place
        self.shapes.append(Box(x, y, width, height, paint, title, opacity))

    def line(self, *ends: float, paint: str = "grid", width: float = 1.0) -> None:
        """Adds a straight line from x, y to x, y."""
        x1, y1, x2, y2 = ends
        self.shapes.append(Path(((x1, y1), (x2, y2)), paint, width))
