"""Finding out which rank did not do what: dumps of the last calls, and what they differ in.

Every process remembers its last calls (2000, or ``TORCH_FR_BUFFER_SIZE``; 0 turns it off). With
``TORCH_FR_DUMP_TEMP_FILE=/some/path/job_`` in the environment a rank writes them to
``/some/path/job_<rank>`` when one of its calls fails (by a timeout, say) or a group is aborted;
:func:`dump` does so at any time. Then::

    python -m freescale_pg.debug /some/path/job_*

prints what :func:`diff` finds, such as
``group 'emb': rank 3 never called all_to_all_single #118. ...``.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from freescale_pg._priority import Priority

__all__ = ["diff", "dump"]

Dump = dict[str, Any]
_FORMAT = 1
# Operations whose ranks all give as many bytes and get as many.
_EQUAL_BYTES = frozenset(
    {"all_reduce", "all_reduce_coalesced", "reduce", "broadcast", "all_gather_into_tensor"}
)


def dump(path: str | PathLike[str] | None = None) -> Dump:
    """Returns the last calls of this process, on all groups.

    Args:
        path: File to write them to as JSON as well.

    Returns:
        ``format``, ``host``, ``pid``, ``time_ns`` (wall clock) and ``now_ns`` (the monotonic clock
        of the times below); ``emulated_link_rate`` (bytes per second that this process may send, by
        ``FREESCALE_EMULATED_LINK_RATE``; None without it); ``groups``: by id, each with ``name``,
        ``rank`` (own), ``size`` and ``global_ranks`` (empty where they are the group's own);
        ``records``, oldest first, each with ``number``, ``group`` (id), ``op``, ``sequence``
        (collectives) or ``peer`` and ``tag`` (point-to-point), ``dtype``, ``bytes_in`` and
        ``bytes_out`` of the tensors, ``priority`` (name), ``state`` (``in_flight``, ``completed``,
        ``failed``), ``paths`` that bytes took (``chunks``, ``pull``, ``inline``, ``local``),
        ``begin_ns``, ``end_ns``, and where they apply ``failure`` and ``waits_for``.
    """
    # Not at the top: comparing dumps needs no torch.
    from freescale_pg._extension import _C

    found: Dump = json.loads(_C.flight_dump())
    for record in found["records"]:
        record["priority"] = Priority(record["priority"]).name
    if path is not None:
        Path(path).write_text(json.dumps(found, indent=1) + "\n")
    return found


@dataclass(frozen=True)
class _Member:
    """One rank's calls of collectives on one group, by number."""

    rank: int
    calls: dict[int, dict[str, Any]]

    @property
    def last(self) -> int:
        return max(self.calls, default=0)

    @property
    def first(self) -> int:
        """The oldest call that is still remembered."""
        return min(self.calls, default=0)


def diff(dumps: Iterable[Mapping[str, Any] | str | PathLike[str]]) -> list[str]:
    """Compares the dumps of several ranks.

    Args:
        dumps: What :func:`dump` returned, or files that hold it, one from each rank; ranks may be
            missing.

    Returns:
        For each group with a difference the first collective at which its ranks differ, and how:
        a rank that never called it, another operation, dtype or size, a failure, or a rank for
        which the others wait. Empty when nothing differs.

    Raises:
        ValueError: Not a dump, of another format, or two of one rank.
    """
    members: dict[str, dict[int, _Member]] = {}
    groups: dict[str, Mapping[str, Any]] = {}
    for given in dumps:
        loaded = _load(given)
        for group_id, group in loaded["groups"].items():
            groups[group_id] = group
            of_group = members.setdefault(group_id, {})
            if group["rank"] in of_group:
                raise ValueError(f"two dumps are of rank {group['rank']} of {_title(group)}")
            of_group[group["rank"]] = _member(loaded, group_id, group["rank"])
    findings = []
    for group_id, group in groups.items():
        ranks = [members[group_id][rank] for rank in sorted(members[group_id])]
        finding = next(_differences(ranks, int(group["size"])), None)
        if finding is not None:
            findings.append(f"{_title(group)}: {finding}")
    return findings


def _load(given: Mapping[str, Any] | str | PathLike[str]) -> Mapping[str, Any]:
    source = "the dump" if isinstance(given, Mapping) else str(given)
    loaded = given if isinstance(given, Mapping) else json.loads(Path(given).read_text())
    if not isinstance(loaded, Mapping) or "records" not in loaded:
        raise ValueError(f"{source} is not a dump of freescale_pg.debug")
    if loaded["format"] != _FORMAT:
        raise ValueError(f"{source} has format {loaded['format']}; known is {_FORMAT}")
    return loaded


def _title(group: Mapping[str, Any]) -> str:
    return f"group {group['name']!r}"


def _member(loaded: Mapping[str, Any], group_id: str, rank: int) -> _Member:
    records = (record for record in loaded["records"] if record["group"] == group_id)
    return _Member(rank, {record["sequence"]: record for record in records if "sequence" in record})


def _differences(members: list[_Member], size: int) -> Iterator[str]:
    """What differs, in the order of the collectives."""
    # Before that some rank has forgotten.
    first = max(member.first for member in members)
    last = max(member.last for member in members)
    for sequence in range(max(first, 1), last + 1):
        calls = {m.rank: m.calls[sequence] for m in members if sequence in m.calls}
        absent = [m for m in members if sequence not in m.calls]
        yield from _difference(sequence, calls, absent, size - len(members))


def _difference(
    sequence: int, calls: Mapping[int, dict[str, Any]], absent: list[_Member], unknown: int
) -> Iterator[str]:
    if not calls:
        return
    ops = {rank: call["op"] for rank, call in calls.items()}
    what = f"{next(iter(ops.values()))} #{sequence}"
    if len(set(ops.values())) > 1:
        called = _by_text({rank: f"called {op}" for rank, op in ops.items()})
        yield f"the ranks differ at #{sequence}: {called}"
    elif absent:
        lasts = "; ".join(_last_call(member) for member in absent)
        yield f"{_ranks(m.rank for m in absent)} never called {what}. {lasts}. {_fates(calls)}"
    else:
        yield from _other_arguments(what, calls)
        yield from _bad_ends(what, calls, unknown)


def _last_call(member: _Member) -> str:
    if not member.calls:
        return f"rank {member.rank} called nothing"
    call = member.calls[member.last]
    state = call["state"].replace("_", " ")
    return f"rank {member.rank} last called {call['op']} #{member.last}, {state}"


def _other_arguments(what: str, calls: Mapping[int, dict[str, Any]]) -> Iterator[str]:
    texts = {"dtype": {r: f"{call['dtype'] or 'no tensor'}" for r, call in calls.items()}}
    if what.split(" #")[0] in _EQUAL_BYTES:
        texts["bytes_in"] = {r: f"{call['bytes_in']} bytes" for r, call in calls.items()}
    for of_ranks in texts.values():
        if len(set(of_ranks.values())) > 1:
            yield f"the ranks gave different tensors to {what}: {_by_text(of_ranks)}"


def _bad_ends(what: str, calls: Mapping[int, dict[str, Any]], unknown: int) -> Iterator[str]:
    states = {call["state"] for call in calls.values()}
    if "failed" in states:
        yield f"{what} failed. {_fates(calls)}"
    elif "in_flight" in states:
        missing = f"; {unknown} ranks gave no dump" if unknown else ""
        yield f"{what} is in flight. {_fates(calls)}{missing}"


def _fates(calls: Mapping[int, dict[str, Any]]) -> str:
    return _by_text({rank: _fate(call) for rank, call in calls.items()})


def _fate(call: Mapping[str, Any]) -> str:
    if call["state"] == "failed":
        return f"failed: {call['failure']}"
    if call["state"] == "completed":
        return "completed it"
    return f"waits for {call['waits_for']}" if "waits_for" in call else "is in it"


def _by_text(texts: Mapping[int, str]) -> str:
    """``rank 0, rank 2: completed it; rank 1: is in it``: the ranks of which the same is true."""
    ranks: dict[str, list[int]] = {}
    for rank, text in texts.items():
        ranks.setdefault(text, []).append(rank)
    return "; ".join(f"{_ranks(of_text)}: {text}" for text, of_text in ranks.items())


def _ranks(ranks: Iterable[int]) -> str:
    return ", ".join(f"rank {rank}" for rank in ranks)


def _main() -> None:
    files = sys.argv[1:]
    if not files:
        raise SystemExit("usage: python -m freescale_pg.debug DUMP...")
    findings = diff(files)
    print("\n".join(findings) if findings else f"{len(files)} dumps: nothing differs")


if __name__ == "__main__":
    _main()
