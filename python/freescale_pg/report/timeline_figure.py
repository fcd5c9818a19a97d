"""The timeline: a lane for each rank, and one below it for what comes in."""

from collections.abc import Sequence

from freescale_pg.report.axes import LINE, draw_key, ticks_up_to
from freescale_pg.report.run import PRIORITIES
from freescale_pg.report.scene import Scene, Text
from freescale_pg.report.timeline import Lane, Window, gathered
from freescale_pg.report.units import duration

_LEFT = 76.0
_TOP = 62.0
_KEY = 14.0
_STATES = 26.0  # height of what a rank does
_ARRIVALS = 7.0  # and of what comes in, of each priority
_GAP = 14.0
# Wide enough for a page; more steps than fit make it wider, and the page scrolls.
_NARROWEST = 960.0
_STEP = 150.0
# A shape narrower than this is not to be seen; gaps narrower than that neither.
_THINNEST = 0.7


def timeline_figure(lanes: Sequence[Lane], window: Window) -> Scene:
    """Returns a timeline of some ranks, from the window's begin on."""
    shown = [each for each in PRIORITIES if any(len(lane.arrivals[each]) for lane in lanes)]
    height = _STATES + _ARRIVALS * len(shown) + _GAP
    steps = window.last - window.first + 1
    width = max(_NARROWEST, _LEFT + _STEP * steps)
    bottom = _TOP + height * len(lanes)
    title = f"What {len(lanes)} ranks did in steps {window.first} to {window.last}"
    scene = Scene(title, width, bottom + 2.2 * LINE)
    scale = (width - 28 - _LEFT) / (window.end - window.begin)
    _draw_times(scene, window, scale, bottom)
    for place, lane in enumerate(lanes):
        _draw_lane(scene, lane, _TOP + height * place, window, scale, shown)
    entries = [("compute", "compute"), ("loader", "loader"), ("stragglers", "stragglers")]
    blocked = [each for each in PRIORITIES if any(len(lane.states[each]) for lane in lanes)]
    used = [each for each in PRIORITIES if each in blocked or each in shown]
    if used:
        entries += [("", "communication:"), *((each, each) for each in used)]
    draw_key(scene, _LEFT, _KEY, entries)
    return scene


def _draw_times(scene: Scene, window: Window, scale: float, bottom: float) -> None:
    span = (window.end - window.begin) / 1e6
    for tick in ticks_up_to(span, 8):
        x = _LEFT + tick * 1e6 * scale
        scene.line(x, _TOP - 8, x, bottom)
        scene.shapes.append(Text(x, bottom + LINE * 0.7, f"{tick:g}", "middle"))
    scene.shapes.append(Text(_LEFT - 8, bottom + LINE * 0.7, "ms", "end"))


def _draw_lane(
    scene: Scene, lane: Lane, top: float, window: Window, scale: float, shown: Sequence[str]
) -> None:
    scene.shapes.append(Text(_LEFT - 8, top + _STATES / 2, f"rank {lane.rank}", "end", "text"))
    gap = int(_THINNEST / scale)
    for state, times in lane.states.items():
        # What is blocked is not made wider than it is; computing is all the rest.
        for begin, end in times.tolist():
            width = (end - begin) * scale
            if width < _THINNEST / 4:
                continue
            title = f"rank {lane.rank}: {_named(state)}, {duration(end - begin)}"
            x = _LEFT + (begin - window.begin) * scale
            scene.box(x, top, max(width, _THINNEST), _STATES, paint=state, title=title)
    if shown:
        middle = top + _STATES + 2 + _ARRIVALS * len(shown) / 2
        scene.shapes.append(Text(_LEFT - 8, middle, "comes in", "end", size=10))
    for place, priority in enumerate(shown):
        y = top + _STATES + 2 + _ARRIVALS * place
        for begin, end in gathered(lane.arrivals[priority], gap).tolist():
            x, width = _LEFT + (begin - window.begin) * scale, (end - begin) * scale
            title = f"rank {lane.rank}: {priority} messages come in, {duration(end - begin)}"
            scene.box(x, y, max(width, 2 * _THINNEST), _ARRIVALS - 2, paint=priority, title=title)
    _draw_steps(scene, lane, top, window, scale)


def _draw_steps(scene: Scene, lane: Lane, top: float, window: Window, scale: float) -> None:
    for number, begin, _ in lane.steps:
        x = _LEFT + (begin - window.begin) * scale
        scene.line(x, top - 5, x, top + _STATES, paint="text", width=1.2)
        if top == _TOP:
            scene.shapes.append(Text(x + 3, top - 10, f"step {number}", size=10))


def _named(state: str) -> str:
    if state in PRIORITIES:
        return f"blocked by {state} communication"
    return "blocked by stragglers" if state == "stragglers" else state
