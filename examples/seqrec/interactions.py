"""Reads the text formats in which people keep user-item interactions."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

# A comma, a semicolon or MovieLens-1M's "::", with or without blanks; or blanks alone.
_SEPARATOR = re.compile(r"\s*(?:::|[,;])\s*|\s+")

# Not just any word that begins so: "user17" is somebody's name.
_USER_HEADING = re.compile(r"user([_ ]?id)?", re.IGNORECASE)

# No rating scale reaches this, and every Unix time after the first seventeen minutes of 1970 does.
_SMALLEST_TIMESTAMP = 1000.0

# A line's number, from 1, and its fields.
_Line = tuple[int, list[str]]


class DataError(ValueError):
    """The data cannot be used; the message names the file, and the line where there is one."""


@dataclass(frozen=True)
class Interaction:
    """One event.

    Attributes:
        user: The user's name as written in the file.
        item: The item's name as written in the file.
        time: Any number that grows with time; events of equal time keep the order of the file.
    """

    user: str
    item: str
    time: float


@dataclass(frozen=True)
class _Columns:
    """Where a line holds what, and how many fields a line must have."""

    user: int
    item: int
    time: int | None
    width: int


def read_interactions(path: Path) -> list[Interaction]:
    """Reads a RecBole ``.inter`` file or lines of ``user item [rating] [timestamp]``.

    An ``.inter`` file is tab-separated under a typed header, such as ``user_id:token item_id:token
    timestamp:float``. Plain lines are separated by blanks, tabs, commas, semicolons or ``::``, and
    may stand under a header whose first word is ``user`` or ``userId``. Of three plain columns the
    last is taken for a timestamp if the first line has 1000 or more there, else for a rating.
    Ratings are ignored: every line is one interaction. Without a timestamp, the order of the file
    is the order of time.

    Args:
        path: The file, UTF-8 text.

    Returns:
        The interactions in the order of the file; at least one.

    Raises:
        DataError: A line has the wrong number of fields, an empty name or a timestamp that is no
            number; the header of an ``.inter`` file lacks ``user_id`` or ``item_id``; or there is
            no interaction.
        OSError: The file cannot be read.
    """
    is_inter = path.suffix == ".inter"
    try:
        with path.open(encoding="utf-8") as file:
            lines = _numbered_fields(file, tab_only=is_inter)
            rows = list(_read_inter(path, lines) if is_inter else _read_plain(path, lines))
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text: {error}") from None
    if not rows:
        raise DataError(f"{path}: no interactions")
    return rows


def _read_inter(path: Path, lines: Iterator[_Line]) -> Iterator[Interaction]:
    header = next(lines, None)
    if header is not None:
        columns = _typed_header(path, *header)
        yield from (_parse(path, columns, *line) for line in lines)


def _read_plain(path: Path, lines: Iterator[_Line]) -> Iterator[Interaction]:
    first = next(lines, None)
    if first is not None and _USER_HEADING.fullmatch(first[1][0]):
        first = next(lines, None)
    if first is not None:
        columns = _plain_columns(path, *first)
        yield from (_parse(path, columns, *line) for line in chain([first], lines))


def _numbered_fields(lines: Iterable[str], *, tab_only: bool) -> Iterator[_Line]:
    """Splits the lines that are not blank; numbers count from 1."""
    for number, line in enumerate(lines, start=1):
        text = line.strip("\n") if tab_only else line.strip()
        if text.strip():
            yield number, text.split("\t") if tab_only else _SEPARATOR.split(text)


def _typed_header(path: Path, number: int, fields: Sequence[str]) -> _Columns:
    names = [field.split(":", 1)[0].strip() for field in fields]
    missing = [name for name in ("user_id", "item_id") if name not in names]
    if missing:
        raise DataError(f"{path}:{number}: the header lacks {' and '.join(missing)}")
    time = names.index("timestamp") if "timestamp" in names else None
    return _Columns(names.index("user_id"), names.index("item_id"), time, len(names))


def _plain_columns(path: Path, number: int, fields: Sequence[str]) -> _Columns:
    if not 2 <= len(fields) <= 4:
        raise DataError(
            f"{path}:{number}: expected 'user item [rating] [timestamp]', got {len(fields)} fields"
        )
    if len(fields) == 4:
        return _Columns(user=0, item=1, time=3, width=4)
    timed = len(fields) == 3 and _number(path, number, fields[2]) >= _SMALLEST_TIMESTAMP
    return _Columns(user=0, item=1, time=2 if timed else None, width=len(fields))


def _parse(path: Path, columns: _Columns, number: int, fields: Sequence[str]) -> Interaction:
    if len(fields) != columns.width:
        raise DataError(f"{path}:{number}: expected {columns.width} fields, got {len(fields)}")
    user, item = fields[columns.user], fields[columns.item]
    if not (user and item):
        raise DataError(f"{path}:{number}: user or item is empty")
    time = 0.0 if columns.time is None else _number(path, number, fields[columns.time])
    return Interaction(user, item, time)


def _number(path: Path, line: int, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{path}:{line}: expected a number, got {text!r}")
    return value
