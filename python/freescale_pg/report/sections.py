"""What a report says of a run, section by section, before it is drawn or written."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from freescale_pg.observe.intervals import total
from freescale_pg.observe.report import TIMES, BubbleReport, RankTimes
from freescale_pg.report import figures
from freescale_pg.report.latency import Latency, latencies, latencies_by_op
from freescale_pg.report.run import OnlineBalance, Run
from freescale_pg.report.scaling import Scaling
from freescale_pg.report.scene import Scene
from freescale_pg.report.timeline import lane_of, spread, window_of
from freescale_pg.report.timeline_figure import timeline_figure
from freescale_pg.report.traffic import LinkTraffic, traffic_of
from freescale_pg.report.units import amount, count, counted, duration, percent

# Ranks of a timeline: more do not fit on a screen.
_LANES = 16
# Rows of a table that nobody reads to its end.
_ROWS = 64


@dataclass(frozen=True)
class Table:
    """Numbers.

    Attributes:
        caption: What they are.
        header: Of the columns; the first one names the row.
        rows: As texts.
        is_folded: Whether to show them only when asked for.
    """

    caption: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    is_folded: bool = False


@dataclass(frozen=True)
class Section:
    """A part of the report.

    Attributes:
        name: Unique; also of the figure's PNG file.
        title: For people.
        lead: What it comes to, in a sentence or two.
        figures: Plots, by name.
        tables: The numbers.
        note: What the numbers mean, and how they were found.
    """

    name: str
    title: str
    lead: str
    figures: dict[str, Scene] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
    note: str = ""


def sections_of(
    run: Run,
    *,
    steps: int = 6,
    first_step: int | None = None,
    scaling: Scaling | str = "no simulation was asked for",
) -> list[Section]:
    """Returns the sections of a run's report; a part without data says why.

    Args:
        run: As :func:`freescale_pg.report.read_run` read it.
        steps: How many steps the timeline shows.
        first_step: Its first one; None: the first that are traced, without warm-up.
        scaling: The simulation, or why there is none.

    Raises:
        ValueError: As :func:`freescale_pg.report.timeline.window_of`.
    """
    return [
        _breakdown(run.bubbles),
        _timeline(run, steps, first_step),
        _imbalance(run),
        *([] if run.online is None else [_online(run.online)]),
        _links(run),
        _latency(run),
        _scaling(scaling),
        _operations(run),
    ]


# --- Where the time went --------------------------------------------------------------------------


def _breakdown(report: BubbleReport) -> Section:
    ranks = [each for each in report.ranks if each.steps]
    title = "Where the time went"
    if not ranks:
        return Section("breakdown", title, "No step was recorded.")
    whole = _whole(ranks)
    lost = {part: _total(ranks, part) for part in figures.PARTS[1:]}
    parts = ", ".join(f"{percent(time, whole)} {part}" for part, time in lost.items() if time)
    lead = f"{percent(report.bubble)} of the ranks' time is bubble{parts and ': '}{parts}."
    if report.bubble > 0 and len(ranks) > 1:
        worst = max(ranks, key=lambda each: report.bubble_of(each.rank))
        lead += f" Rank {worst.rank} has the largest: {percent(report.bubble_of(worst.rank))}."
    return Section(
        "breakdown",
        title,
        lead,
        {"breakdown": figures.breakdown_figure(ranks), "steps": figures.steps_figure(ranks)},
        (_rank_table(report, ranks), *_blocked_table(report, whole)),
        "bubble = 1 − compute / (ranks × step time). Stragglers: blocked until the last of the"
        " ranks had come to the call. Communication: blocked from then on, by bytes that nothing"
        " hid. Compute is all the rest, so it has what Python takes, too.",
    )


def _rank_table(report: BubbleReport, ranks: Sequence[RankTimes]) -> Table:
    parts = figures.parts_there_are(ranks)
    header = ("", "steps", "step", *parts, "bubble")
    rows = [
        _rank_row(f"rank {each.rank}", [each], parts, report.bubble_of(each.rank))
        for each in ranks[:_ROWS]
    ]
    if len(ranks) > 1:
        rows.append(_rank_row("all ranks", ranks, parts, report.bubble))
    caption = "Parts of the step time by rank" + _cut(len(ranks), "ranks")
    return Table(caption, header, rows, is_folded=len(rows) > 17)


def _rank_row(
    name: str, ranks: Sequence[RankTimes], parts: Sequence[str], bubble: float
) -> tuple[str, ...]:
    whole, steps = _whole(ranks), sum(len(each.steps) for each in ranks)
    cells = (percent(_total(ranks, part), whole) for part in parts)
    most = max(len(each.steps) for each in ranks)
    return (name, count(most), duration(whole / steps), *cells, percent(bubble))


def _blocked_table(report: BubbleReport, whole: int) -> list[Table]:
    rows = [
        (
            one.op,
            one.priority or "",
            percent(one.stragglers_ns, whole),
            percent(one.communication_ns, whole),
        )
        for one in report.blocked()
    ]
    header = ("blocked by", "priority", "stragglers", "communication")
    return [Table("Parts of the ranks' time", header, rows)] if rows else []


def _whole(ranks: Sequence[RankTimes]) -> int:
    return sum(each.total(lambda step: step.total_ns) for each in ranks)


def _total(ranks: Sequence[RankTimes], part: str) -> int:
    return sum(each.total(TIMES[part]) for each in ranks)


def _cut(number: int, noun: str) -> str:
    return f", {_ROWS} of {count(number)} {noun}" if number > _ROWS else ""


# --- Timeline -------------------------------------------------------------------------------------


def _timeline(run: Run, steps: int, first_step: int | None) -> Section:
    window = window_of(run, steps, first_step)
    if window is None:
        return Section("timeline", "Timeline", "No rank has left a trace of a whole step.")
    traced = [rank for rank in run.ranks.values() if rank.trace is not None]
    lanes = [lane_of(rank, window) for rank in spread(traced, _LANES)]
    states = figures.PARTS[0], "loader", "stragglers"
    rows = []
    for lane in lanes:
        times = {state: total(each) for state, each in lane.states.items()}
        exposed = sum(time for state, time in times.items() if state not in states)
        cells = [times["compute"], times["loader"], times["stragglers"], exposed]
        rows.append((f"rank {lane.rank}", *map(duration, cells)))
    number = window.last - window.first + 1
    which = f"steps {window.first} to {window.last}" if number > 1 else f"step {window.first}"
    some = f"; {len(lanes)} of {len(traced)} traced ranks" if len(lanes) < len(traced) else ""
    lead = f"{which.capitalize()}, {window.why}: {duration(window.end - window.begin)}{some}."
    dropped = sum(rank.trace.dropped for rank in traced if rank.trace is not None)
    note = (
        "Above, what the thread of the steps did; below, when messages came in, by priority. A line"
        " marks where a step begins. Point at a shape to read what it is. rankN.trace.json.gz in"
        " the run's directory opens in Perfetto and has every call, wait and message."
    )
    if dropped:
        note += f" {counted(dropped, 'older event')} of all ranks had no room."
    return Section(
        "timeline",
        "Timeline",
        lead,
        {"timeline": timeline_figure(lanes, window)},
        (
            Table(
                "Time within these steps",
                ("", "compute", "loader", "stragglers", "communication"),
                rows,
            ),
        ),
        note,
    )


# --- Imbalance ------------------------------------------------------------------------------------


def _imbalance(run: Run) -> Section:
    title = "Imbalance: before, after, and the least possible"
    if not run.balance:
        return Section(
            "imbalance",
            title,
            "No sampler was recorded: give one to fs.record_run(…, sampler=…).",
        )
    last = run.balance[-1]
    lead = (
        f"In the last epoch the heaviest rank had {last.before:.3f} times the mean load with"
        f" samples dealt out in turn, and {last.after:.3f} times as balanced; no assignment comes"
        f" below {last.floor:.3f}."
    )
    rows = [
        (
            str(each.epoch),
            count(each.steps),
            *(f"{value:.4f}" for value in (each.before, each.after, each.floor)),
            percent(1 - each.after / each.before),
        )
        for each in run.balance[-_ROWS:]
    ]
    header = ("epoch", "batches", "before", "after", "floor", "shorter by")
    caption = "Heaviest over mean load by epoch" + _cut(len(run.balance), "epochs")
    which = f"batches of epoch {last.epoch}"
    drawn = {"imbalance": figures.imbalance_figure(last, which, "dealt in turn")}
    return Section(
        "imbalance",
        title,
        lead,
        drawn if len(last.batches) else {},
        (Table(caption, header, rows, is_folded=len(rows) > 17),),
        "Loads are those of the sampler's cost model; a step takes as long as its heaviest rank."
        " Before: the same samples dealt out in turn, as DistributedSampler does it. Floor: what"
        " the heaviest rank has to bear in any assignment.",
    )


def _online(online: OnlineBalance) -> Section:
    held = online.imbalance
    moved = online.samples_moved / online.samples if online.samples else 0.0
    lead = (
        f"The heaviest rank had {held.before:.3f} times the mean load as the samples came, and was"
        f" to have {held.after:.3f} times once {percent(moved)} of them had moved; no assignment"
        f" comes below {held.floor:.3f}."
    )
    rows = [
        ("batches", count(held.steps)),
        ("of which nothing moved", count(online.skipped)),
        ("samples", count(online.samples)),
        ("of which moved", f"{count(online.samples_moved)}, {amount(online.bytes_moved)}"),
        ("heaviest over mean as they came", f"{held.before:.4f}"),
        ("predicted after moving", f"{held.after:.4f}"),
        ("floor", f"{held.floor:.4f}"),
    ]
    which = f"last {count(len(held.batches))} of {count(held.steps)} batches, balanced online"
    drawn = {"online": figures.imbalance_figure(held, which, "as they came")}
    return Section(
        "online",
        "Online balancing: as it came, predicted, and the least possible",
        lead,
        drawn if len(held.batches) else {},
        (Table("All batches of all ranks", ("", ""), rows),),
        "Loads are those of the costs that the balancer was given, so what it predicts is as good"
        " as they are: what the steps took stands above. Floor: what the heaviest rank has to bear"
        " in any assignment.",
    )


# --- Links ----------------------------------------------------------------------------------------


def _links(run: Run) -> Section:
    traffic = traffic_of(run)
    title = "Links"
    if not traffic:
        return Section(
            "links",
            title,
            "No messages were traced, and no links noted: there is one rank, or the CPU tensors"
            f" go over another backend ({run.facts['backend']}).",
        )
    moved = sum(each.total_bytes for each in traffic)
    traced = sum(each.bytes for each in traffic)
    messages = sum(each.messages for each in traffic)
    held = counted(messages, "message")
    lead = f"{amount(moved)} went; {held} of {amount(traced)} are in the traces."
    if moved:
        most = max(traffic, key=lambda each: each.total_bytes)
        lead += (
            f" Most on the way from rank {most.source} to rank {most.target}:"
            f" {amount(most.total_bytes)}."
        )
    busiest = sorted(traffic, key=lambda each: -each.total_bytes)
    rows = [_link_row(each) for each in busiest[:_ROWS]]
    header = ("link", "transport", "bytes", "messages", "traced", "median", "p99", "rate")
    reasons = {each.transport: each.reason for each in traffic if each.transport}
    why = "".join(f" {name}: {reason}." for name, reason in reasons.items())
    return Section(
        "links",
        title,
        lead,
        {"links": figures.links_figure(traffic)},
        (
            Table(
                "The busiest links" + _cut(len(traffic), "links"),
                header,
                rows,
                is_folded=len(rows) > 17,
            ),
        ),
        "Bytes are those of fs.stats() at the end where it was recorded, else of the messages in"
        " the traces, which the other numbers are of, as their receivers saw them. Times are from"
        " when both sides had asked to the last byte; messages that travelled with their header"
        " take none and count for bytes alone. The rate is the bytes of the others over the sum of"
        " these times, in which other messages may have been under way on the same link."
        f"{why}",
    )


def _link_row(each: LinkTraffic) -> tuple[str, ...]:
    return (
        f"{each.source} → {each.target}",
        each.transport or "–",
        amount(each.total_bytes),
        count(each.messages),
        amount(each.bytes),
        "–" if each.median_ns is None else duration(each.median_ns),
        "–" if each.slow_ns is None else duration(each.slow_ns),
        "–" if each.rate is None else f"{amount(each.rate)}/s",
    )


# --- Latency --------------------------------------------------------------------------------------


def _latency(run: Run) -> Section:
    found = [each for each in latencies(run) if len(each.whole)]
    title = "Latency by priority"
    if not found:
        return Section("latency", title, "No calls of this backend were traced.")
    lead = "Half of the calls were over within " + ", ".join(
        f"{duration(each.percentile(50))} ({each.priority})" for each in found
    )
    header = ("", "calls", "failed", "p50", "p90", "p99", "longest", "transfer p50", "transfer p99")
    by_op = [each for each in latencies_by_op(run) if len(each.whole)]
    return Section(
        "latency",
        title,
        lead + ".",
        {"latency": figures.latency_figure(found)},
        (
            Table("By priority", header, [_latency_row(each.priority, each) for each in found]),
            Table(
                "By priority and operation",
                header,
                [_latency_row(f"{each.priority} {each.op}", each) for each in by_op],
                is_folded=True,
            ),
        ),
        "From the call to its end, on all ranks, whether somebody waited or not: calls behind the"
        " computation may take long and cost nothing. Transfer: from when the last rank had come.",
    )


def _latency_row(name: str, each: Latency) -> tuple[str, ...]:
    whole = (duration(each.percentile(percent)) for percent in (50, 90, 99, 100))
    middle, slow = np.percentile(each.transfer, [50, 99]).tolist()
    numbers = (count(len(each.whole)), count(each.failed))
    return (name, *numbers, *whole, duration(middle), duration(slow))


# --- Scaling --------------------------------------------------------------------------------------


def _scaling(scaling: Scaling | str) -> Section:
    title = "Simulated scaling"
    if isinstance(scaling, str):
        return Section("scaling", title, f"Not simulated: {scaling}.")
    most = max(scaling.points)
    first, *_, last = scaling.points[most]
    lead = (
        f"On {count(most)} ranks {percent(first.bubble)} of the time would be bubble in the"
        f" baseline, and {percent(last.bubble)} with all techniques: {percent(last.gone)} of it"
        " gone."
    )
    rows = [
        (
            count(ranks),
            point.mode.value,
            duration(1e9 * point.step_seconds),
            *(
                f"{100 * max(0.0, part):.2f} %"  # the sums agree to rounding
                for part in (point.bubble, point.stragglers, point.communication, point.slowdown)
            ),
            percent(point.gone),
        )
        for ranks, points in scaling.points.items()
        for point in points
    ]
    header = (
        "ranks",
        "mode",
        "step",
        "bubble",
        "stragglers",
        "communication",
        "slowdown",
        "bubbles gone",
    )
    return Section(
        "scaling",
        title,
        lead,
        {"scaling": figures.scaling_figure(scaling)},
        (Table("By number of ranks and mode", header, rows),),
        _scaling_note(scaling),
    )


def _scaling_note(scaling: Scaling) -> str:
    scenario, cluster = scaling.scenario, scaling.scenario.cluster
    return (
        f"A model, not a measurement (docs/simulation.md). {scaling.basis} Machine: hosts of"
        f" {cluster.ranks_per_host} ranks, {amount(cluster.nvlink_bytes_per_second)}/s to the ranks"
        f" of a host and {amount(cluster.nic_bytes_per_second)}/s to others, each way. Rows of"
        f" {amount(scenario.sizes.vector_bytes)}, dense gradients of"
        f" {amount(sum(scenario.sizes.bucket_bytes))}. {counted(scenario.steps, 'step')} after"
        f" {scenario.warm_up}."
    )


# --- Totals ---------------------------------------------------------------------------------------


def _operations(run: Run) -> Section:
    title = "Totals of operations"
    sums: dict[tuple[str, str], list[float]] = {}
    for rank in run.ranks.values():
        for each in rank.operations:
            row = sums.setdefault((each.priority, each.op), [0.0] * 5)
            values = (
                each.calls,
                each.bytes_sent,
                each.bytes_received,
                each.blocked_seconds,
                each.in_flight_seconds,
            )
            sums[each.priority, each.op] = [a + b for a, b in zip(row, values, strict=True)]
    if not sums:
        return Section("operations", title, "fs.stats() has counted no calls of this backend.")
    rows = [
        (
            op,
            priority,
            count(int(calls)),
            amount(sent),
            amount(received),
            duration(1e9 * blocked),
            duration(1e9 * in_flight),
        )
        for (priority, op), (calls, sent, received, blocked, in_flight) in sorted(
            sums.items(), key=lambda item: -item[1][1]
        )
    ]
    header = ("operation", "priority", "calls", "sent", "received", "blocked", "in flight")
    sent = sum(row[1] for row in sums.values())
    return Section(
        "operations",
        title,
        f"{amount(sent)} were sent by all ranks together.",
        {},
        (Table("Sums over all ranks", header, rows),),
        "What fs.stats() said at the end: of the whole process, or since fs.reset_stats().",
    )


Tile = tuple[str, str]


def headline(run: Run) -> list[Tile]:
    """Returns the numbers that a reader wants first: what each is, and how much."""
    report = run.bubbles
    ranks = [each for each in report.ranks if each.steps]
    tiles: list[Tile] = []
    if ranks:
        steps = sum(len(each.steps) for each in ranks)
        tiles += [
            ("bubble", percent(report.bubble)),
            ("step", duration(_whole(ranks) / steps)),
            ("stragglers", percent(_total(ranks, "stragglers"), _whole(ranks))),
            ("communication", percent(_total(ranks, "communication"), _whole(ranks))),
        ]
    if run.balance:
        last = run.balance[-1]
        tiles.append(("heaviest over mean", f"{last.before:.2f} → {last.after:.2f}"))
    most_urgent = next((each for each in latencies(run) if len(each.whole)), None)
    if most_urgent is not None:
        tiles.append((f"p99 of {most_urgent.priority}", duration(most_urgent.percentile(99))))
    return tiles
