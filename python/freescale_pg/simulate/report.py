"""Simulated modes, for people and for programs."""

from collections.abc import Mapping, Sequence
from typing import Any

from freescale_pg.simulate.breakdown import Breakdown
from freescale_pg.simulate.modes import Outcome, gone
from freescale_pg.simulate.schedule import Traffic

_HEADER = (
    "mode",
    "step ms",
    "bubble %",
    "stragglers %",
    "communication %",
    "slowdown %",
    "bubbles gone %",
    "by this %",
)


def table(outcomes: Sequence[Outcome]) -> str:
    """Returns a line for each mode.

    *Bubble* is the part of the ranks' time that is no compute, and the three columns after it are
    its parts. *Bubbles gone* is against the first mode, *by this* what the mode adds to that.
    """
    lines: list[tuple[str, ...]] = [_HEADER]
    before = 0.0
    for outcome in outcomes:
        time, now = outcome.time, gone(outcome, outcomes)
        parts = (time.bubble, *_parts(time))
        lines.append(
            (
                outcome.mode.value,
                f"{1e3 * time.step_seconds:.3f}",
                *(f"{100 * part:.2f}" for part in (*parts, now, now - before)),
            )
        )
        before = now
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(_line(line, widths) for line in lines)


def _parts(time: Breakdown) -> list[float]:
    """Stragglers, communication and slowdown, as parts of the time that passed."""
    return [
        part / time.elapsed if time.elapsed > 0 else 0.0
        for part in (time.straggler, time.communication, time.slowdown)
    ]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    rest = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
    return "  ".join([cells[0].ljust(widths[0]), *rest])


def exposed_table(outcomes: Sequence[Outcome]) -> str:
    """Returns what of the communication each mode waits for, in percent of its time."""
    shown = [t for t in Traffic if any(each.time.exposed[t] > 0 for each in outcomes)]
    names = [traffic.value for traffic in shown]
    lines = [("waits for %", *names)]
    for outcome in outcomes:
        time = outcome.time
        parts = (f"{100 * time.exposed[traffic] / time.elapsed:.3f}" for traffic in shown)
        lines.append((outcome.mode.value, *parts))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(_line(line, widths) for line in lines)


def as_json(outcomes: Sequence[Outcome], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all that was found, with the parameters it was found for; times in seconds."""
    return {
        "parameters": dict(parameters),
        "modes": [
            {
                "mode": outcome.mode.name.lower(),
                "step_seconds": outcome.time.step_seconds,
                "bubble": outcome.time.bubble,
                "bubbles_gone": gone(outcome, outcomes),
                "rank_seconds": {
                    "elapsed": outcome.time.elapsed,
                    "compute": outcome.time.compute,
                    "slowdown": outcome.time.slowdown,
                    "straggler": outcome.time.straggler,
                    "exposed": {
                        traffic.name.lower(): seconds
                        for traffic, seconds in outcome.time.exposed.items()
                    },
                },
                "starved_exchanges": outcome.starved,
            }
            for outcome in outcomes
        ],
    }
