"""One HTML page that shows a training run: the command ``freescale report``.

:func:`read_run` reads the directory that ``fs.record_run`` wrote, :func:`sections_of` says what it
shows, and :func:`render` makes the page of that. Needs no torch; plots as PNG need matplotlib.
``docs/report.md`` tells how to use it.
"""

from freescale_pg.report.page import render
from freescale_pg.report.reading import read_run
from freescale_pg.report.run import Run
from freescale_pg.report.sections import Section, sections_of

__all__ = ["Run", "Section", "read_run", "render", "sections_of"]
