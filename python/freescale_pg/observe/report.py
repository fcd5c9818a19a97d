"""Where the time of training steps went, on all ranks, and what is a bubble."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

_FORMAT = 1
_MILLISECOND = 1e6  # ns


@dataclass(frozen=True, slots=True)
class Blocked:
    """For how long calls of one operation at one priority blocked a step.

    Attributes:
        op: Name of the operation, e.g. "all_reduce".
        priority: Name of the priority, e.g. "URGENT"; None where it is not known.
        stragglers_ns: Until the last of the ranks had called it.
        communication_ns: From then on: its bytes were not hidden behind anything.
    """

    op: str
    priority: str | None
    stragglers_ns: int
    communication_ns: int


@dataclass(frozen=True, slots=True)
class StepTime:
    """Where the time of one step went on one rank.

    Attributes:
        number: Of the step.
        total_ns: Of the whole step: the sum of the other times.
        compute_ns: None of the following.
        loader_ns: Waiting for the next batch.
        idle_ns: Of a device with nothing to do for another reason; 0 where the host computes.
        blocked: By operation and priority.
    """

    number: int
    total_ns: int
    compute_ns: int
    loader_ns: int
    idle_ns: int
    blocked: tuple[Blocked, ...]

    @property
    def stragglers_ns(self) -> int:
        """Blocked until other ranks came."""
        return sum(each.stragglers_ns for each in self.blocked)

    @property
    def communication_ns(self) -> int:
        """Blocked by communication that nothing hid."""
        return sum(each.communication_ns for each in self.blocked)


@dataclass(frozen=True, slots=True)
class RankTimes:
    """The steps of one rank.

    Attributes:
        rank: Of all ranks.
        steps: In order.
    """

    rank: int
    steps: tuple[StepTime, ...]

    def total(self, time_of: Callable[[StepTime], int]) -> int:
        """Returns the sum of a time over the steps."""
        return sum(map(time_of, self.steps))


@dataclass(frozen=True, slots=True)
class BubbleReport:
    """Where the time of all steps went, on all ranks.

    ``str()`` gives a table.

    Attributes:
        ranks: In order.
    """

    ranks: tuple[RankTimes, ...]

    @property
    def bubble(self) -> float:
        """The part of the ranks' time in which they did not compute.

        1 - compute time / (ranks x step time), the sums of all steps, where the time of a step is
        the mean over the ranks. 0 without steps.
        """
        return _bubble(self.ranks)

    def bubble_of(self, rank: int) -> float:
        """The same of one rank alone.

        Raises:
            KeyError: The rank has no times here.
        """
        for each in self.ranks:
            if each.rank == rank:
                return _bubble([each])
        raise KeyError(rank)

    def blocked(self) -> list[Blocked]:
        """Returns the sums over steps and ranks, the longest first."""
        sums: dict[tuple[str, str | None], list[int]] = defaultdict(lambda: [0, 0])
        for one in (one for rank in self.ranks for step in rank.steps for one in step.blocked):
            sums[one.op, one.priority][0] += one.stragglers_ns
            sums[one.op, one.priority][1] += one.communication_ns
        found = [Blocked(*key, *times) for key, times in sums.items()]
        return sorted(found, key=lambda one: -(one.stragglers_ns + one.communication_ns))

    def __str__(self) -> str:
        lines = [_line("", "steps", "step ms", *_PARTS, "bubble")]
        lines += [_rank_line(f"rank {each.rank}", [each]) for each in self.ranks]
        if len(self.ranks) > 1:
            lines.append(_rank_line("all ranks", self.ranks))
        if blocked := self.blocked():
            lines += ["", f"{'blocked by':<38} {'stragglers':>12} {'communication':>14}"]
            lines += [self._blocked_line(one) for one in blocked]
        return "\n".join(lines)

    def step_table(self) -> str:
        """Returns a table with a line for each step and rank."""
        lines = [_line("", "step", "step ms", *_PARTS, "bubble")]
        lines += [
            _step_line(f"rank {each.rank}", str(step.number), [RankTimes(each.rank, (step,))])
            for each in self.ranks
            for step in each.steps
        ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Returns all times, in a form that JSON can hold."""
        return {
            "format": _FORMAT,
            "bubble": self.bubble,
            "ranks": [
                {
                    "rank": each.rank,
                    "bubble": _bubble([each]),
                    "steps": [step_fields(step) for step in each.steps],
                }
                for each in self.ranks
            ],
        }

    def to_json(self, path: str | PathLike[str]) -> None:
        """Writes :meth:`to_dict` to a file."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=1) + "\n")

    def _blocked_line(self, one: Blocked) -> str:
        whole = sum(each.total(lambda step: step.total_ns) for each in self.ranks)
        name = f"{one.op} {one.priority or ''}"
        return (
            f"{name:<38} {_percent(one.stragglers_ns, whole):>12}"
            f" {_percent(one.communication_ns, whole):>14}"
        )


# What a step's time goes to.
TIMES: dict[str, Callable[[StepTime], int]] = {
    "compute": lambda step: step.compute_ns,
    "loader": lambda step: step.loader_ns,
    "stragglers": lambda step: step.stragglers_ns,
    "communication": lambda step: step.communication_ns,
    "idle": lambda step: step.idle_ns,
}
_PARTS = tuple(TIMES)


def _bubble(ranks: Iterable[RankTimes]) -> float:
    steps = [step for each in ranks for step in each.steps]
    whole = sum(step.total_ns for step in steps)
    return 1 - sum(step.compute_ns for step in steps) / whole if whole else 0.0


def step_fields(step: StepTime) -> dict[str, Any]:
    """Returns a step as JSON holds it."""
    return {
        "step": step.number,
        "total_ns": step.total_ns,
        "compute_ns": step.compute_ns,
        "loader_ns": step.loader_ns,
        "idle_ns": step.idle_ns,
        "stragglers_ns": step.stragglers_ns,
        "communication_ns": step.communication_ns,
        "blocked": [
            {
                "op": one.op,
                "priority": one.priority,
                "stragglers_ns": one.stragglers_ns,
                "communication_ns": one.communication_ns,
            }
            for one in step.blocked
        ],
    }


def step_from_fields(fields: Mapping[str, Any]) -> StepTime:
    """Returns the step that :func:`step_fields` made this of.

    Raises:
        KeyError: Something is missing.
        TypeError: Something is of another type.
        ValueError: Something is no number.
    """
    blocked = tuple(
        Blocked(
            op=str(one["op"]),
            priority=None if one["priority"] is None else str(one["priority"]),
            stragglers_ns=int(one["stragglers_ns"]),
            communication_ns=int(one["communication_ns"]),
        )
        for one in fields["blocked"]
    )
    return StepTime(
        number=int(fields["step"]),
        total_ns=int(fields["total_ns"]),
        compute_ns=int(fields["compute_ns"]),
        loader_ns=int(fields["loader_ns"]),
        idle_ns=int(fields["idle_ns"]),
        blocked=blocked,
    )


def _rank_line(name: str, ranks: Sequence[RankTimes]) -> str:
    return _step_line(name, str(max(len(each.steps) for each in ranks)), ranks)


def _step_line(name: str, steps: str, ranks: Sequence[RankTimes]) -> str:
    """The parts of the steps' time, and the mean of that."""
    whole = sum(each.total(lambda step: step.total_ns) for each in ranks)
    count = sum(len(each.steps) for each in ranks)
    mean = whole / count / _MILLISECOND if count else 0.0
    parts = [
        _percent(sum(each.total(time_of) for each in ranks), whole) for time_of in TIMES.values()
    ]
    return _line(name, steps, f"{mean:.3f}", *parts, f"{100 * _bubble(ranks):.1f} %")


def _line(name: str, *cells: str) -> str:
    return f"{name:<10}" + "".join(f" {cell:>13}" for cell in cells)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "0.0 %"
