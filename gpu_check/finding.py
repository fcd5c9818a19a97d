"""What rows find: the lines of JSON that probes and ranks print (``tests/gpu/finding.h``)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Fact:
    """Something that was measured or seen."""

    name: str
    value: float | str
    unit: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.value_text}"

    @property
    def value_text(self) -> str:
        """The value as a person reads it."""
        number = f"{self.value:.4g}" if isinstance(self.value, float) else str(self.value)
        return f"{number} {self.unit}".rstrip()


@dataclass(frozen=True)
class Expectation:
    """A rule that the design relies on, and whether it holds."""

    rule: str
    holds: bool

    def __str__(self) -> str:
        return f"{self.rule}: {'holds' if self.holds else 'DOES NOT HOLD'}"


@dataclass(frozen=True)
class Unavailable:
    """The question cannot be asked on this machine."""

    why: str

    def __str__(self) -> str:
        return self.why


Finding = Fact | Expectation | Unavailable


def parse(line: str) -> Finding | None:
    """Reads one line of a row's output.

    Returns:
        None for a line that is not JSON: libraries print to the same place.

    Raises:
        ValueError: It is a JSON object, but no finding.
    """
    if not line.startswith("{"):
        return None
    try:
        content = json.loads(line)
        return from_json(content)
    except (KeyError, TypeError) as error:
        raise ValueError(f"no finding: {line.rstrip()}") from error


def from_json(content: dict[str, Any]) -> Finding:
    """The finding that :func:`to_json` made this of."""
    if "fact" in content:
        value = content["value"]
        return Fact(
            content["fact"],
            value if isinstance(value, str) else float(value),
            content.get("unit", ""),
        )
    if "expect" in content:
        return Expectation(content["expect"], bool(content["holds"]))
    return Unavailable(content["unavailable"])


def to_json(finding: Finding) -> dict[str, Any]:
    """The finding as an object of a line of JSON."""
    if isinstance(finding, Fact):
        return {"fact": finding.name, "value": finding.value, "unit": finding.unit}
    if isinstance(finding, Expectation):
        return {"expect": finding.rule, "holds": finding.holds}
    return {"unavailable": finding.why}
