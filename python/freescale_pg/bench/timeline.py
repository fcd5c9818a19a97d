"""A picture of one step of each schedule of ``overlap``: what computes, and what travels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

_LANES = ("computing", "URGENT", "HIGH", "NORMAL", "LOW", "BACKGROUND")
_COLOURS = {
    "forward": "#4c72b0",
    "backward": "#3b5a8a",
    "optimizer": "#8fa9d0",
    "URGENT": "#c44e52",
    "HIGH": "#dd8452",
    "NORMAL": "#937860",
    "LOW": "#55a868",
    "BACKGROUND": "#b0b0b0",
}


def draw(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws the last measured step of each schedule, as rank 0 saw it.

    Args:
        results: Of ``overlap``, in the order of the pictures.
        path: An SVG or PNG file.
    """
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        len(results), 1, sharex=True, squeeze=False, figsize=(9, 1.6 * len(results))
    )
    for panel, result in zip(panels[:, 0], results, strict=True):
        _draw_step(panel, result)
    panels[-1, 0].set_xlabel("ms since the step began")
    figure.tight_layout()
    # Without the time of day, so that the same run gives the same file.
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def _draw_step(panel: Any, result: dict[str, Any]) -> None:
    rank = result["ranks"][0]
    step = rank["steps"][-1]
    begin, end = step["begin"], step["end"]
    bars = [("computing", each["name"], each["begin"], each["end"]) for each in rank["computing"]]
    bars += [(call[2], call[2], call[0], call[1]) for call in rank["calls"]]
    for lane, name, first, last in bars:
        if first < end and last > begin:
            shown = max(first, begin), min(last, end)
            panel.barh(
                _LANES.index(lane),
                1e3 * (shown[1] - shown[0]),
                left=1e3 * (shown[0] - begin),
                color=_COLOURS[name],
                height=0.7,
            )
    panel.set_yticks(range(len(_LANES)), _LANES, fontsize=6)
    panel.invert_yaxis()
    title = f"{rank['backend']}, {result['schedule']}, {100 * result['shared']:g} % shared"
    panel.set_title(title, fontsize=8, loc="left")
