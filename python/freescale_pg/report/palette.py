"""Colours by what they stand for, for light pages and for dark ones.

What computes is pale: the eye is to find what does not. Communication is warm, from crimson where
it is URGENT to olive in the BACKGROUND, and stragglers are violet, which nothing else is.
"""

from typing import NamedTuple


class Paint(NamedTuple):
    """A colour on a light page, and on a dark one."""

    light: str
    dark: str


PALETTE: dict[str, Paint] = {
    "surface": Paint("#ffffff", "#16191d"),
    "panel": Paint("#f4f6f8", "#1f242a"),
    "text": Paint("#1b1f24", "#e6e9ed"),
    "muted": Paint("#57606a", "#a3adb8"),
    "grid": Paint("#dde2e7", "#343b44"),
    "axis": Paint("#8a939d", "#6d7782"),
    "warning": Paint("#9a3412", "#fdba74"),
    "accent": Paint("#1f5fa8", "#7ab3f0"),
    "compute": Paint("#b7c6d8", "#4b5f78"),
    "loader": Paint("#2a9d8f", "#45b8a9"),
    "stragglers": Paint("#7b4ab8", "#ae86e8"),
    "communication": Paint("#d9691a", "#ef8b43"),
    "slowdown": Paint("#b23a48", "#e0707d"),
    "idle": Paint("#cfcfcf", "#5a5a5a"),
    "URGENT": Paint("#9c0f3f", "#ff6f91"),
    "HIGH": Paint("#d9421e", "#ff875c"),
    "NORMAL": Paint("#ef8a1d", "#f5a442"),
    "LOW": Paint("#cfae12", "#dcc447"),
    "BACKGROUND": Paint("#87923a", "#a3b05c"),
    "before": Paint("#c2571a", "#f0924f"),
    "after": Paint("#1f5fa8", "#7ab3f0"),
    "floor": Paint("#57606a", "#a3adb8"),
    "baseline": Paint("#6b7580", "#9aa5b1"),
    "balance": Paint("#1f5fa8", "#7ab3f0"),
    "overlap": Paint("#d9691a", "#ef8b43"),
    "sm_free": Paint("#2a9d8f", "#45b8a9"),
}
