"""Tables that read well in a terminal and are Markdown."""

from __future__ import annotations

from collections.abc import Sequence

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """An aligned Markdown table; the first column is flush left, the others flush right."""
    lines = [list(header), *[list(row) for row in rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    rule = ["-" * widths[0], *["-" * (width - 1) + ":" for width in widths[1:]]]
    return "\n".join(_line(line, widths) for line in [lines[0], rule, *lines[1:]])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first = cells[0].ljust(widths[0])
    rest = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
    return f"| {' | '.join([first, *rest])} |"


def size_text(size: int) -> str:
    """``size`` bytes in the largest unit that gives a whole number: 65536 is ``64 KiB``."""
    factor, unit = next((f, u) for f, u in _UNITS if size % f == 0 and size >= f)
    return f"{size // factor} {unit}"


def parse_size(text: str) -> int:
    """Bytes of ``64``, ``64B``, ``4KiB`` or ``16 MiB``.

    Raises:
        ValueError: not a positive whole number with one of these units.
    """
    number, factor = text.replace(" ", ""), 1
    for unit_factor, unit in _UNITS:
        if number.endswith(unit):
            number, factor = number.removesuffix(unit), unit_factor
            break
    if not number.isdecimal() or int(number) == 0:
        units = ", ".join(unit for _, unit in reversed(_UNITS))
        raise ValueError(f"size {text!r} is not a whole number from 1 on, with a unit of {units}")
    return int(number) * factor


def microseconds_text(value: float | None) -> str:
    """A time with about three digits, or a dash."""
    if value is None:
        return "–"
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def ratio_text(value: float | None) -> str:
    """A ratio with two decimals below ten and one above, or a dash."""
    if value is None:
        return "–"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"
