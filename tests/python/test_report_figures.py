"""What a report computes of a run, and how it draws that."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from freescale_pg.observe.intervals import total, union
from freescale_pg.report import figures
from freescale_pg.report.axes import Axes, decades, ticks_between
from freescale_pg.report.latency import latencies, latencies_by_op
from freescale_pg.report.palette import PALETTE
from freescale_pg.report.png import write_png
from freescale_pg.report.reading import read_run
from freescale_pg.report.run import Join, Message, RankRun, Run, Trace, Wait
from freescale_pg.report.scene import Box, Scene, Text
from freescale_pg.report.svg import to_svg
from freescale_pg.report.timeline import gathered, lane_of, spread, window_of
from freescale_pg.report.timeline_figure import timeline_figure
from freescale_pg.report.traffic import LinkTraffic, traffic_of
from freescale_pg.report.units import amount, counted, duration, percent
from report_runs import LARGE, MS, SMALL, STEPS, THREAD, write_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return read_run(write_run(tmp_path))


def with_trace(rank: RankRun, **changes: object) -> RankRun:
    assert rank.trace is not None
    return replace(rank, trace=replace(rank.trace, **changes))


# --- Timeline -------------------------------------------------------------------------------------


def test_window(run: Run) -> None:
    window = window_of(run, 2)
    assert window is not None
    assert (window.first, window.last) == (2, 3)
    assert (window.begin, window.end) == (20 * MS, 40 * MS)
    assert "2 that warm up" in window.why
    # Where there are no more, the first ones are shown, too.
    most = window_of(run, STEPS - 1)
    assert most is not None and (most.first, most.last) == (1, STEPS - 1)
    beyond = window_of(run, 99, first=3)
    assert beyond is not None and (beyond.first, beyond.last) == (3, STEPS - 1)
    with pytest.raises(ValueError, match=r"no rank has traced step 7 or .*steps 0 to 4"):
        window_of(run, 1, first=7)
    with pytest.raises(ValueError, match="steps must be positive, got 0"):
        window_of(run, 0)


def test_window_of_what_is_traced(run: Run) -> None:
    """Of the steps before the first event that was kept nothing is known."""
    trace = run.ranks[0].trace
    assert trace is not None
    late = {
        kind: tuple(each for each in getattr(trace, kind) if each.end > 15 * MS)
        for kind in ("calls", "waits", "messages")
    }
    ranks = {0: with_trace(run.ranks[0], **late, dropped=9)}
    window = window_of(replace(run, ranks=ranks), 3, first=0)
    assert window is not None and window.first == 2
    assert window_of(replace(run, ranks={0: replace(run.ranks[0], trace=None)}), 3) is None


def test_a_lane_adds_up(run: Run) -> None:
    window = window_of(run, 2)
    assert window is not None
    lane = lane_of(run.ranks[0], window)
    times = {state: total(times) for state, times in lane.states.items() if len(times)}
    # As the meter has it.
    assert times == {"loader": MS, "compute": 11 * MS, "stragglers": 6 * MS, "NORMAL": 2 * MS}
    assert lane.states["stragglers"].tolist() == [[26 * MS, 29 * MS], [36 * MS, 39 * MS]]
    assert lane.steps == ((2, 20 * MS, 30 * MS), (3, 30 * MS, 40 * MS))
    assert lane.arrivals["NORMAL"].tolist() == [[29 * MS, 30 * MS], [39 * MS, 40 * MS]]
    assert total(lane.arrivals["URGENT"]) == 2  # they take no time, and are there


def test_waits_of_other_threads_count_only_where_they_are_awaited(run: Run) -> None:
    """The thread of the steps joins another from 22 to 24 ms, which waits from 21 to 23."""
    window = window_of(run, 1)
    assert window is not None and window.first == 2
    waits = (
        Wait(5, "HIGH", 21 * MS, 22 * MS + 1, 23 * MS),
        Wait(5, "LOW", 25 * MS, 25 * MS, 26 * MS),
        Wait(6, "URGENT", 22 * MS, 22 * MS, 24 * MS),
        # Within another one: no further time.
        Wait(THREAD, "NORMAL", 27 * MS, 27 * MS, 29 * MS),
        Wait(THREAD, "URGENT", 27 * MS, 28 * MS, 28 * MS + 5),
    )
    joins = (Join(THREAD, 5, 22 * MS, 24 * MS), Join(6, 5, 25 * MS, 26 * MS))
    lane = lane_of(with_trace(run.ranks[0], waits=waits, joins=joins), window)
    assert lane.states["HIGH"].tolist() == [[22 * MS + 1, 23 * MS]]
    assert not len(lane.states["LOW"])
    assert lane.states["stragglers"].tolist() == [[22 * MS, 22 * MS + 1], [27 * MS, 28 * MS]]
    assert lane.states["URGENT"].tolist() == [[28 * MS, 28 * MS + 5]]
    assert lane.states["NORMAL"].tolist() == [[28 * MS + 5, 29 * MS]]
    assert sum(map(total, lane.states.values())) == 10 * MS


def test_timeline_figure(run: Run) -> None:
    window = window_of(run, 2)
    assert window is not None
    scene = timeline_figure([lane_of(rank, window) for rank in run.ranks.values()], window)
    stragglers = [box for box in boxes(scene, "stragglers") if box.title]
    assert [box.title for box in stragglers] == ["rank 0: blocked by stragglers, 3.00 ms"] * 2
    whole = sum(box.width for box in boxes(scene, "compute") if "rank 1" in box.title)
    # Rank 1 computes for 18 of 20 ms.
    per_ms = stragglers[0].width / 3
    assert whole == pytest.approx(18 * per_ms, rel=1e-6)
    words = [shape.text for shape in scene.shapes if isinstance(shape, Text)]
    assert {"rank 0", "rank 1", "step 2", "step 3", "stragglers", "NORMAL", "URGENT"} <= {*words}
    assert "HIGH" not in words


def test_what_is_near_is_one() -> None:
    near = gathered(union([(0, 10), (14, 20), (31, 40)]), 5)
    assert near.tolist() == [[0, 20], [31, 40]]


def test_ranks_are_spread(run: Run) -> None:
    ranks = [replace(run.ranks[0], rank=rank) for rank in range(100)]
    assert [each.rank for each in spread(ranks, 4)] == [0, 33, 66, 99]
    assert spread(ranks, 100) == ranks


def boxes(scene: Scene, paint: str) -> list[Box]:
    return [shape for shape in scene.shapes if isinstance(shape, Box) and shape.paint == paint]


# --- Links ----------------------------------------------------------------------------------------


def test_traffic_counts_each_message_once(run: Run) -> None:
    forth, back = traffic_of(run)
    assert (forth.source, forth.target, back.source, back.target) == (0, 1, 1, 0)
    for link in (forth, back):
        assert (link.transport, link.reason) == ("shm", "both <share>")
        assert link.messages == 2 * STEPS
        assert link.bytes == STEPS * (LARGE + SMALL)
        # Those that took any time: 1 MB in 1 ms each.
        assert link.median_ns == link.slow_ns == MS
        assert link.rate == pytest.approx(1e9)


def test_traffic_to_a_rank_whose_trace_is_not_there(run: Run) -> None:
    ranks = {**run.ranks, 1: replace(run.ranks[1], trace=None)}
    forth, back = traffic_of(replace(run, ranks=ranks))
    assert forth.bytes == back.bytes == STEPS * (LARGE + SMALL)
    none = traffic_of(replace(run, ranks={0: replace(run.ranks[0], trace=None)}))
    assert none == [LinkTraffic(0, 1, "shm", "both <share>", 0, 0, None, None, None)]


def test_links_figure_of_many_ranks(run: Run) -> None:
    """More than 32 ranks share rows: 100 ranks make 25 blocks of 4."""
    ways = ((rank, (rank + 4) % 100) for rank in range(100))
    traffic = [LinkTraffic(*way, "shm", "", 1, 10, None, None, None) for way in ways]
    scene = figures.links_figure(traffic)
    cells = [box for box in scene.shapes if isinstance(box, Box) and box.title]
    assert len(cells) == 25 * 25
    (first,) = [box for box in cells if box.title.startswith("ranks 0–3 to ranks 4–7")]
    assert first.title.endswith("40 B") and first.opacity == 1
    assert next(box for box in cells if "ranks 0–3 to ranks 8" in box.title).opacity == 0


# --- Latency --------------------------------------------------------------------------------------


def test_latencies(run: Run) -> None:
    urgent, normal = latencies(run)
    assert (urgent.priority, normal.priority) == ("URGENT", "NORMAL")
    # The first call of each rank failed.
    assert (len(urgent.whole), urgent.failed) == (2 * (STEPS - 1), 2)
    assert urgent.whole.tolist() == urgent.transfer.tolist() == [MS] * 8
    # Rank 1 comes last; rank 0 calls 3 ms before.
    assert normal.whole.tolist() == [MS] * STEPS + [4 * MS] * STEPS
    assert normal.transfer.tolist() == [MS] * 2 * STEPS
    assert normal.percentile(90) == 4 * MS
    assert [each.op for each in latencies_by_op(run)] == ["all_to_all_single", "all_reduce"]


# --- Drawing --------------------------------------------------------------------------------------


def test_breakdown_figure_adds_up(run: Run) -> None:
    scene = figures.breakdown_figure(run.bubbles.ranks)
    bars = [shape for shape in scene.shapes if isinstance(shape, Box)]
    widths = {bar.paint: bar.width for bar in bars if "rank 0" in bar.title}
    whole = sum(widths.values())
    shares = {paint: round(100 * width / whole, 6) for paint, width in widths.items()}
    assert shares == {"compute": 55, "loader": 5, "stragglers": 30, "communication": 10}


def test_steps_figure_puts_many_steps_together(run: Run) -> None:
    (first, *_) = run.bubbles.ranks
    steps = tuple(replace(first.steps[0], number=number) for number in range(401))
    scene = figures.steps_figure([replace(first, steps=steps)])
    titles = [box.title for box in boxes(scene, "stragglers") if box.title]
    assert titles[0] == "steps 0 to 2: stragglers 3.00 ms"
    assert titles[-1] == "steps 399 to 400: stragglers 3.00 ms"
    assert len(titles) == 134


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (1, 1.3, [1, 1.1, 1.2, 1.3]),
        (0, 0.07, [0, 0.02, 0.04, 0.06]),
        (3, 3, [3]),
    ],
)
def test_ticks(low: float, high: float, expected: list[float]) -> None:
    assert ticks_between(low, high) == pytest.approx(expected)


def test_scales() -> None:
    axes = Axes(Scene("", 100, 100), 10, 20, 110, 120, (1, 0), (100, 4), is_log=True)
    assert axes.x(10) == pytest.approx(60)
    assert (axes.y(0), axes.y(4), axes.y(1)) == (120, 20, 95)
    assert decades(1, 1000) == [1, 10, 100, 1000]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (duration(0), "0"),
        (duration(999), "999 ns"),
        (duration(1234), "1.23 µs"),
        (duration(99_960_000), "100 ms"),
        (duration(2.5e9), "2.50 s"),
        (amount(999), "999 B"),
        (amount(9_996_000), "10.0 MB"),
        (percent(1, 3), "33.3 %"),
        (percent(1, 0), "0.0 %"),
        (counted(1, "rank"), "1 rank"),
        (counted(4096, "rank"), "4,096 ranks"),
    ],
)
def test_units(written: str, expected: str) -> None:
    assert written == expected


def test_svg() -> None:
    scene = Scene('a "<title>"', 100, 50)
    scene.box(1, 2.345, 3, 4, paint="compute", title="<script>", opacity=0.5)
    scene.line(0, 0, 5, 5)
    scene.shapes.append(Text(1, 2, "a < b & c", "end"))
    written = to_svg(scene, "name")
    assert '<title id="name-title">a &quot;&lt;title&gt;&quot;</title>' in written
    assert '<rect x="1" y="2.35" width="3" height="4" fill="var(--compute)"' in written
    assert "<title>&lt;script&gt;</title>" in written and "a &lt; b &amp; c" in written
    assert "http" not in written


def test_all_paints_are_in_the_palette(run: Run) -> None:
    window = window_of(run, 2)
    assert window is not None
    lanes = [lane_of(rank, window) for rank in run.ranks.values()]
    scenes = [
        timeline_figure(lanes, window),
        figures.breakdown_figure(run.bubbles.ranks),
        figures.steps_figure(run.bubbles.ranks),
        figures.imbalance_figure(run.balance[-1], "batches", "dealt in turn"),
        figures.links_figure(traffic_of(run)),
        figures.latency_figure(latencies(run)),
    ]
    written = "".join(to_svg(scene, "x") for scene in scenes)
    paints = {*re.findall(r"var\(--(\w+)\)", written)}
    assert paints <= set(PALETTE) and len(paints) > 8


def test_png(tmp_path: Path, run: Run) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    image = pytest.importorskip("PIL.Image", reason="matplotlib brings Pillow")
    path = tmp_path / "x.png"
    scene = figures.breakdown_figure(run.bubbles.ranks)
    write_png(scene, path)
    with image.open(path) as drawn:
        assert drawn.size == (int(2 * scene.width), int(2 * scene.height))
        (box,) = [box for box in boxes(scene, "stragglers") if "rank 0" in box.title]
        middle = (round(2 * (box.x + box.width / 2)), round(2 * (box.y + box.height / 2)))
        colour = "#" + "".join(f"{value:02x}" for value in drawn.convert("RGB").getpixel(middle))
    assert colour == PALETTE["stragglers"].light


def test_messages_that_take_no_time_are_drawn(run: Run) -> None:
    window = window_of(run, 1)
    assert window is not None
    trace = Trace((), (), (), (Message(1, True, "LOW", 5, 21 * MS, 21 * MS),), 0)
    lane = lane_of(replace(run.ranks[0], trace=trace), window)
    drawn = [box for box in boxes(timeline_figure([lane], window), "LOW") if "come in" in box.title]
    assert len(drawn) == 1 and drawn[0].width > 1
