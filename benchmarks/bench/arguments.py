"""Types of command-line arguments that several benchmarks take."""

import argparse
from collections.abc import Callable, Collection


def names_among(choices: Collection[str]) -> Callable[[str], list[str]]:
    """Returns the type of an argument that is some of the choices, separated by commas."""

    def chosen(text: str) -> list[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in choices]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(choices)}")
        return names

    return chosen


def integers(text: str) -> list[int]:
    """Whole numbers, separated by commas."""
    return [int(word) for word in text.split(",")]


def numbers(text: str) -> list[float]:
    """Numbers, separated by commas."""
    return [float(word) for word in text.split(",")]
