"""Were all ranks given the same data and settings?"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

import torch.distributed as dist


class RanksDisagreeError(ValueError):
    """Ranks were given different data or settings, or one of them could not go on.

    Raised on all ranks that take part, with a text that names the ranks and both values, so that
    none waits for another one.
    """


@dataclass(frozen=True)
class _Member:
    """What one rank tells the others."""

    rank: int
    facts: dict[str, object]
    problem: str | None


def check_agreement(
    subject: str,
    find_facts: Callable[[], Mapping[str, object]],
    rank: int,
    world_size: int,
    group: dist.ProcessGroup | None,
) -> None:
    """Compares what the members of a group were given; collective.

    Args:
        subject: What must be the same, for the message: "the ranks' samplers".
        find_facts: Returns what must be the same everywhere, by the name to use in a message. If it
            raises a ValueError, all members learn of that.
        rank: The rank that this member was given, which must be another one on each of
            ``world_size`` members. In a larger group, such as with model parallelism, every rank
            must come equally often.
        world_size: The number of ranks that it was given.
        group: Whose members to compare; None: the default group.

    Raises:
        RanksDisagreeError: On every member, if any two differ, or one has a problem.
    """
    members = _gather(_describe(find_facts, rank), group)
    _raise_problems(members)
    complaints = _differences(dict(enumerate(member.facts for member in members)))
    ranks = [member.rank for member in members]
    if not complaints and sorted(ranks) != sorted(r % world_size for r in range(len(ranks))):
        complaints.append(f"rank: given as {ranks}, of {world_size}")
    if complaints:
        raise RanksDisagreeError(f"{subject} differ in " + "; ".join(complaints))


def raise_disagreement(
    subject: str,
    facts: Mapping[str, object] | None,
    problem: Exception | None,
    group: dist.ProcessGroup | None,
) -> NoReturn:
    """Says on all members what they found to differ, or which has a problem; collective.

    Args:
        subject: What differs, for the message: "the ranks' batches".
        facts: What was to be the same, by name; None: nothing on this rank.
        problem: What this rank can't go on for; None: nothing.
        group: Whose members to ask; None: the default group.

    Raises:
        RanksDisagreeError: On every member; where there was a problem, caused by it.
    """
    text = None if problem is None else f"{type(problem).__name__}: {problem}"
    members = _gather(_Member(dist.get_rank(group), dict(facts or {}), text), group)
    _raise_problems(members, cause=problem)
    asked = {rank: member.facts for rank, member in enumerate(members) if member.facts}
    raise RanksDisagreeError(f"{subject} differ in " + "; ".join(_differences(asked)))


def _raise_problems(members: list[_Member], cause: Exception | None = None) -> None:
    problems = [f"rank {rank}: {each.problem}" for rank, each in enumerate(members) if each.problem]
    if problems:
        raise RanksDisagreeError("; ".join(problems)) from cause


def _differences(facts: Mapping[int, Mapping[str, object]]) -> list[str]:
    """One line for each fact that is not the same on all ranks."""
    names = dict.fromkeys(name for of_rank in facts.values() for name in of_rank)
    lines = []
    for name in names:
        values = {rank: of_rank.get(name, "absent") for rank, of_rank in facts.items()}
        if len(set(map(str, values.values()))) > 1:
            lines.append(f"{name}: {_by_value(values)}")
    return lines


def _describe(find_facts: Callable[[], Mapping[str, object]], rank: int) -> _Member:
    try:
        return _Member(rank, dict(find_facts()), None)
    except ValueError as error:
        return _Member(rank, {}, str(error))


def _gather(own: _Member, group: dist.ProcessGroup | None) -> list[_Member]:
    gathered: list[_Member | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, own, group=group)
    return [member for member in gathered if member is not None]


def _by_value(values: Mapping[int, object]) -> str:
    """For example ``7 on ranks 0, 2 and 8 on rank 1``."""
    holders: dict[str, list[str]] = {}
    for rank, value in values.items():
        holders.setdefault(str(value), []).append(str(rank))
    return " and ".join(
        f"{value} on rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}"
        for value, ranks in holders.items()
    )
