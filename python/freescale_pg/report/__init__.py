"""One HTML page that shows a training run; ``freescale report`` is its command.

:mod:`reading` reads the directory that ``fs.record_run`` wrote, :mod:`sections` says what it shows,
and :mod:`page` makes the page of that. Needs no torch; plots as PNG need matplotlib.
``docs/report.md`` tells how to use it.
"""
