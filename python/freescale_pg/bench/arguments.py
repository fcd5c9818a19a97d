"""Types of command-line arguments that several benchmarks take.

Lists are separated by commas. What cannot be taken is an error that names it and what could be.
"""

import argparse
import math
from collections.abc import Callable, Collection

from freescale_pg.bench.table import parse_size


def names_among(choices: Collection[str]) -> Callable[[str], list[str]]:
    """Returns the type of an argument that is some of the choices."""

    def chosen(text: str) -> list[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in choices]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(choices)}")
        return names

    return chosen


def names(text: str) -> list[str]:
    """Words that somebody else knows."""
    return text.split(",")


def integers(text: str) -> list[int]:
    """Whole numbers."""
    return [int(word) for word in text.split(",")]


def numbers(text: str) -> list[float]:
    """Numbers."""
    return [float(word) for word in text.split(",")]


def size(text: str) -> int:
    """Bytes, such as ``64B``, ``4KiB`` or ``16MiB``."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def sizes(text: str) -> list[int]:
    """Several sizes."""
    return [size(word) for word in text.split(",")]


def count(text: str) -> int:
    """A whole number from 1 on."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return value


def counts(text: str) -> list[int]:
    """Several whole numbers from 1 on."""
    return [count(word) for word in text.split(",")]


def positive(text: str) -> float:
    """A number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def parts(text: str) -> list[float]:
    """Several parts of a whole, from 0 to 1."""
    found = []
    for word in text.split(","):
        try:
            value = float(word)
        except ValueError:
            value = -1.0
        if not 0 <= value <= 1:
            raise argparse.ArgumentTypeError(f"{word!r} is not a number from 0 to 1")
        found.append(value)
    return found
