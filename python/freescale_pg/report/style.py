"""How the page looks: its style sheet, for light and dark, narrow and wide, screen and print."""

from freescale_pg.report.palette import PALETTE

_RULES = """
:root { color-scheme: light dark; }
body { margin: 0 auto; max-width: 64rem; padding: 1.5rem 1.25rem 4rem; background: var(--surface);
  color: var(--text); font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .2rem; }
h2 { font-size: 1.2rem; margin: 0 0 .3rem; }
header p, .note { color: var(--muted); }
header p { margin: 0; }
section { margin-top: 2.6rem; border-top: 1px solid var(--grid); padding-top: 1.2rem; }
.lead { margin: .2rem 0 1rem; max-width: 50rem; }
.note { font-size: .87rem; max-width: 50rem; }
.missing { border-left: 4px solid var(--warning); background: var(--panel); padding: .7rem 1rem;
  margin: 1.2rem 0 0; }
.missing h2 { font-size: 1rem; color: var(--warning); }
.missing ul { margin: 0; padding-left: 1.2rem; overflow-wrap: anywhere; }
.tiles { display: flex; flex-wrap: wrap; gap: .7rem; margin: 1.3rem 0 0; padding: 0; }
.tiles div { flex: 1 1 8rem; background: var(--panel); border-radius: 6px; padding: .6rem .8rem; }
.tiles dt { color: var(--muted); font-size: .82rem; }
.tiles dd { margin: 0; font-size: 1.3rem; font-weight: 600; font-variant-numeric: tabular-nums;
  white-space: nowrap; }
nav { margin-top: 1.1rem; font-size: .9rem; display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; }
a { color: var(--accent); }
figure { margin: 0 0 1.2rem; overflow-x: auto; }
figure:focus-visible { outline: 2px solid var(--accent); }
figcaption { font-size: .87rem; color: var(--muted); margin-bottom: .3rem; }
svg { display: block; font-family: inherit; }
svg.fits { max-width: 100%; height: auto; min-width: 40rem; }
rect:hover { stroke: var(--text); stroke-width: 1; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .87rem; font-variant-numeric: tabular-nums;
  margin: .3rem 0 1rem; }
caption { text-align: left; color: var(--muted); padding-bottom: .2rem; white-space: nowrap; }
th, td { text-align: right; padding: .18rem .7rem; border-bottom: 1px solid var(--grid);
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; font-weight: 500; }
td.word, th.word { text-align: left; }
thead th { color: var(--muted); font-weight: 500; }
summary { cursor: pointer; font-size: .87rem; color: var(--accent); margin-bottom: .4rem; }
footer { margin-top: 3rem; color: var(--muted); font-size: .82rem; overflow-wrap: anywhere; }
@media print { section { break-inside: avoid; } nav { display: none; } }
"""


def style_sheet() -> str:
    """Returns the CSS of the page; the palette's colours are variables."""
    light = " ".join(f"--{name}: {paint.light};" for name, paint in PALETTE.items())
    dark = " ".join(f"--{name}: {paint.dark};" for name, paint in PALETTE.items())
    return (
        f":root {{ {light} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n{_RULES.strip()}"
    )
