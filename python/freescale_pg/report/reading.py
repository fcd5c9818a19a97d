"""Reads the directory of a run; what is damaged or not there is said, and the rest read."""

import math
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from freescale_pg.observe.report import StepTime, step_from_fields
from freescale_pg.observe.run_files import FORMAT, KIND, read_json, summaries, summary_path
from freescale_pg.report.run import (
    PRIORITIES,
    Call,
    EpochImbalance,
    Imbalance,
    Join,
    Link,
    Message,
    OnlineBalance,
    Operation,
    RankRun,
    Run,
    TimedStep,
    Trace,
    Traffic,
    Wait,
    Workload,
)

Fields = Mapping[str, Any]

# What a file must have for any of it to be shown.
_FACTS = ("run", "ranks", "began_unix", "backend", "torch", "python")
_STATES = ("running", "finished", "failed")
_YEAR_5000 = 9.5e10  # s since 1970
# Times and sizes that sums of many stay far from the bounds of 64 bits with: 104 days, 9 PB.
_MOST = 1 << 53
# More than these are counted, not named.
_NAMED = 8


def read_run(directory: str | PathLike[str]) -> Run:
    """Reads what ``fs.record_run`` wrote.

    Args:
        directory: With the files of all ranks, or of those that are there.

    Raises:
        OSError: The directory cannot be read.
        ValueError: There is no file of a run in it, none that can be used, or files of several
            runs; names the files and says why.
    """
    path = Path(directory)
    found = dict(summaries(path))
    if not found:
        raise ValueError(f"{path} holds no run: it has no file rank0.json, or of another rank")
    missing: list[str] = []
    held = {rank: fields for rank, file in found.items() if (fields := _fields(file, missing))}
    if not held:
        raise ValueError("; ".join(missing))
    _check_one_run(path, held)
    ranks = {}
    for rank, fields in held.items():
        try:
            ranks[rank] = _rank(path, rank, fields, missing)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            missing.append(_unusable(found[rank], error))
    if not ranks:
        raise ValueError("; ".join(missing))
    first = held[min(ranks)]
    missing += _absent(first["ranks"], found)
    missing += [_unfinished(each) for each in ranks.values() if each.state != "finished"]
    balance = _part(held, "balance", _balance, missing) or ()
    online = _part(held, "online", _online, missing)
    workload = _part(held, "workload", _workload, missing)
    return Run(
        directory=path,
        size=first["ranks"],
        began_unix=first["began_unix"],
        facts={name: str(first[name]) for name in _FACTS},
        ranks=ranks,
        balance=balance,
        online=None if online is None or not online.imbalance.steps else online,
        workload=workload,
        missing=tuple(missing),
    )


def _fields(path: Path, missing: list[str]) -> Fields | None:
    try:
        fields = read_json(path)
        if fields.get("kind") != KIND:
            raise ValueError(f"{path} is not of a run: its kind is {fields.get('kind')!r}")
        if fields.get("format") != FORMAT:
            raise ValueError(
                f"{path} has format {fields.get('format')!r}; this version reads {FORMAT}"
            )
        if absent := [name for name in _FACTS if name not in fields]:
            raise ValueError(f"{path} has no {absent[0]}")
        if not (isinstance(fields["ranks"], int) and fields["ranks"] > 0):
            raise ValueError(f"{path} is of {fields['ranks']!r} ranks")
        if not (
            isinstance(fields["began_unix"], int | float) and 0 <= fields["began_unix"] < _YEAR_5000
        ):
            raise ValueError(f"{path} began at {fields['began_unix']!r} s since 1970")
    except (OSError, ValueError) as error:
        missing.append(str(error))
        return None
    return fields


def _unusable(path: Path, error: Exception) -> str:
    what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
    return f"{path} cannot be used: {what}"


def _check_one_run(directory: Path, held: Mapping[int, Fields]) -> None:
    (first, model), *others = held.items()
    for rank, fields in others:
        for name in ("run", "ranks"):
            if fields.get(name) != model.get(name):
                raise ValueError(
                    f"{summary_path(directory, first)} and {summary_path(directory, rank)} are of"
                    f" different runs: {name} is {model.get(name)} and {fields.get(name)}"
                )


def _absent(size: int, found: Mapping[int, Path]) -> list[str]:
    """Says which ranks have left no file."""
    absent = [rank for rank in range(size) if rank not in found]
    if not absent:
        return []
    names = ", ".join(map(str, absent[:_NAMED]))
    more = f" and {len(absent) - _NAMED} more" if len(absent) > _NAMED else ""
    which = f"rank {names}" if len(absent) == 1 else f"ranks {names}{more}"
    return [f"{which} of {size}: no file"]


def _unfinished(rank: RankRun) -> str:
    if rank.state == "failed":
        return f"rank {rank.rank} failed: {rank.error}"
    return (
        f"rank {rank.rank} did not end its recording: it was killed, or the run goes on; this is"
        " what it wrote last"
    )


def _rank(directory: Path, rank: int, fields: Fields, missing: list[str]) -> RankRun:
    if fields["rank"] != rank:
        raise ValueError(f"it is of rank {fields['rank']}")
    if fields["state"] not in _STATES:
        raise ValueError(f"its state is {fields['state']!r}, none of {', '.join(_STATES)}")
    return RankRun(
        rank=rank,
        host=str(fields["host"]),
        process=int(fields["process"]),
        state=fields["state"],
        error=None if fields["error"] is None else str(fields["error"]),
        steps=tuple(
            TimedStep(
                _checked(step_from_fields(step)),
                _whole(step["begin_ns"]),
                _whole(step["end_ns"]),
                int(step["thread"]),
            )
            for step in fields["steps"]
        ),
        loads=np.array(
            [(_whole(begin), _whole(end)) for begin, end in fields["loads"]], dtype=np.int64
        ).reshape(-1, 2),
        operations=tuple(map(_operation, fields["operations"])),
        links=tuple(
            Link(_peer(row["peer"]), str(row["transport"]), str(row["reason"]))
            for row in fields["links"]
        ),
        # Recorders of before wrote none.
        traffic=tuple(map(_traffic, fields.get("traffic", ()))),
        trace=_trace(directory, rank, fields["trace"], missing),
    )


def _whole(value: Any) -> int:
    """A number of bytes, calls or ns."""
    number = int(value)
    if not abs(number) < _MOST:
        raise ValueError(f"{number} is too much")
    return number


def _checked(step: StepTime) -> StepTime:
    for blocked in step.blocked:
        _whole(blocked.stragglers_ns)
        _whole(blocked.communication_ns)
    for time in (step.number, step.total_ns, step.compute_ns, step.loader_ns, step.idle_ns):
        _whole(time)
    return step


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not abs(seconds) < _MOST:
        raise ValueError(f"{seconds} s is no time")
    return seconds


def _operation(row: Fields) -> Operation:
    return Operation(
        op=str(row["op"]),
        priority=str(row["priority"]),
        calls=_whole(row["calls"]),
        bytes_sent=_whole(row["bytes_sent"]),
        bytes_received=_whole(row["bytes_received"]),
        blocked_seconds=_seconds(row["blocked_seconds"]),
        in_flight_seconds=_seconds(row["in_flight_seconds"]),
    )


def _traffic(row: Fields) -> Traffic:
    sent, received = _whole(row["bytes_sent"]), _whole(row["bytes_received"])
    if min(sent, received) < 0:
        raise ValueError(f"{sent} bytes sent and {received} received are no totals")
    return Traffic(_peer(row["peer"]), sent, received)


def _peer(value: Any) -> int:
    peer = _whole(value)
    if peer < 0:
        raise ValueError(f"{peer} is no rank")
    return peer


def _trace(directory: Path, rank: int, about: Fields | None, missing: list[str]) -> Trace | None:
    if about is None:
        return None
    # The name alone: a summary must not lead anywhere else.
    path = directory / Path(about["file"]).name
    found: dict[str, list[Any]] = {category: [] for category in _MAKERS}
    try:
        for event in read_json(path)["traceEvents"]:
            if make := _MAKERS.get(event.get("cat", "")):
                begin = _whole(round(1e3 * event["ts"]))
                end = begin + _whole(round(1e3 * event["dur"]))
                found[event["cat"]].append(make(event, begin, end))
    except (OSError, AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        what = f"{path} has an event without {error}" if isinstance(error, KeyError) else error
        missing.append(f"no trace of rank {rank}: {what}")
        return None
    return Trace(
        calls=tuple(found["call"]),
        waits=tuple(found["wait"]),
        joins=tuple(found["join"]),
        messages=tuple(found["message"]),
        dropped=_whole(about["dropped"]),
    )


def _call(event: Fields, begin: int, end: int) -> Call:
    given = event["args"]
    op = event["name"].split(" #")[0]
    ready = begin + _whole(given.get("stragglers_ns", 0))
    return Call(op, _priority(given), begin, ready, end, bool(given["failed"]))


def _wait(event: Fields, begin: int, end: int) -> Wait:
    given = event["args"]
    ready = begin + _whole(given.get("stragglers_ns", 0))
    return Wait(int(given["thread"]), _priority(given), begin, ready, end)


def _join(event: Fields, begin: int, end: int) -> Join:
    return Join(int(event["args"]["thread"]), int(event["args"]["joined"]), begin, end)


def _message(event: Fields, begin: int, end: int) -> Message:
    given = event["args"]
    is_incoming = "from" in given
    peer = _peer(given["from"] if is_incoming else given["to"])
    return Message(peer, is_incoming, _priority(given), _whole(given["bytes"]), begin, end)


def _priority(given: Fields) -> str:
    if given["priority"] not in PRIORITIES:
        raise ValueError(f"{given['priority']!r} is no priority")
    return str(given["priority"])


# By the category of the trace's events.
_MAKERS: dict[str, Callable[[Fields, int, int], Any]] = {
    "call": _call,
    "wait": _wait,
    "join": _join,
    "message": _message,
}

T = TypeVar("T")


def _part(
    held: Mapping[int, Fields],
    name: str,
    make: Callable[[Any], T],
    missing: list[str],
) -> T | None:
    """Reads what all ranks know alike, from the first of them that does."""
    for rank, fields in held.items():
        if fields.get(name):
            try:
                return make(fields[name])
            except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
                missing.append(f"the {name} that rank {rank} noted cannot be used: {error!r}")
    return None


def _balance(rows: Sequence[Fields]) -> tuple[EpochImbalance, ...]:
    return tuple(
        EpochImbalance(
            epoch=_whole(row["epoch"]),
            steps=_whole(row["steps"]),
            before=_ratio(row["before"]),
            after=_ratio(row["after"]),
            floor=_ratio(row["floor"]),
            batches=_batches(row["batches"]),
        )
        for row in rows
    )


def _batches(rows: Sequence[Sequence[Any]]) -> npt.NDArray[np.float64]:
    ratios = [[_ratio(value) for value in batch] for batch in rows]
    return np.array(ratios, dtype=np.float64).reshape(-1, 3)


def _online(fields: Fields) -> OnlineBalance:
    samples, moved = _whole(fields["samples"]), _whole(fields["samples_moved"])
    if not 0 <= moved <= samples:
        raise ValueError(f"{moved} of {samples} samples moved")
    return OnlineBalance(
        Imbalance(
            steps=_whole(fields["batches"]),
            before=_ratio(fields["before"]),
            after=_ratio(fields["after"]),
            floor=_ratio(fields["floor"]),
            batches=_batches(fields["recent"]),
        ),
        skipped=_whole(fields["skipped"]),
        samples=samples,
        samples_moved=moved,
        bytes_moved=_whole(fields["bytes_moved"]),
    )


def _ratio(value: Any) -> float:
    """A heaviest load over the mean, which is the least that it can be."""
    ratio = float(value)
    if not 1 <= ratio < math.inf:
        raise ValueError(f"{ratio} is no ratio of the heaviest load to the mean")
    return ratio


def _workload(fields: Fields) -> Workload:
    lengths = np.array(fields["lengths"], dtype=np.float64)
    if lengths.ndim != 1 or not len(lengths) or not (np.isfinite(lengths) & (lengths >= 0)).all():
        raise ValueError(f"lengths of shape {lengths.shape} are none, or not all are lengths")
    costs = float(fields["token_cost"]), float(fields["pair_cost"])
    if not all(0 <= cost < math.inf for cost in costs):
        raise ValueError(f"the costs of a token and a pair are {costs}")
    samples = _whole(fields["samples_per_rank"])
    if samples < 1:
        raise ValueError(f"{samples} samples on each rank")
    return Workload(samples, lengths, *costs)
