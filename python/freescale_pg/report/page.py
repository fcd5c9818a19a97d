"""Writes the page: one HTML file that loads nothing and runs nothing."""

from collections.abc import Sequence
from datetime import datetime, timezone
from html import escape

from freescale_pg.report.figures import WIDTH
from freescale_pg.report.run import Run
from freescale_pg.report.scene import Scene
from freescale_pg.report.sections import Section, Table, headline
from freescale_pg.report.style import style_sheet
from freescale_pg.report.svg import to_svg
from freescale_pg.report.units import counted

# The browser itself holds the page to it: no script, no font, no image, no request.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def render(run: Run, sections: Sequence[Section]) -> str:
    """Returns the page as HTML.

    Args:
        run: Of which.
        sections: What it shows.
    """
    title = f"Run of {counted(run.size, 'rank')}: {run.directory.resolve().name}"
    links = "".join(f'<a href="#{each.name}">{escape(each.title)}</a> ' for each in sections)
    body = "\n".join(map(_section, sections))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style_sheet()}\n</style>\n</head>\n<body>\n"
        f"<header>\n<h1>{escape(title)}</h1>\n<p>{escape(_subtitle(run))}</p>\n</header>\n"
        f"{_missing(run)}{_tiles(run)}<nav>{links}</nav>\n<main>\n{body}\n</main>\n"
        f"<footer>{escape(_footer(run))}</footer>\n</body>\n</html>\n"
    )


def _subtitle(run: Run) -> str:
    began = datetime.fromtimestamp(run.began_unix, timezone.utc)
    steps = max((len(each.steps) for each in run.ranks.values()), default=0)
    hosts = run.hosts
    where = f"on {hosts[0]}" if len(hosts) == 1 else f"on {len(hosts)} hosts"
    return (
        f"{began:%Y-%m-%d %H:%M} UTC · {where} · {counted(steps, 'step')} ·"
        f" backend {run.facts['backend']} · torch {run.facts['torch']}"
    )


def _missing(run: Run) -> str:
    if not run.missing:
        return ""
    items = "".join(f"<li>{escape(each)}</li>" for each in run.missing)
    return f'<div class="missing" role="note"><h2>Not all is here</h2><ul>{items}</ul></div>\n'


def _tiles(run: Run) -> str:
    tiles = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in headline(run)
    )
    return f'<dl class="tiles">{tiles}</dl>\n' if tiles else ""


def _section(section: Section) -> str:
    parts = [
        f'<section id="{section.name}">\n<h2>{escape(section.title)}</h2>',
        f'<p class="lead">{escape(section.lead)}</p>',
        *(_figure(name, scene) for name, scene in section.figures.items()),
        *map(_table, section.tables),
    ]
    if section.note:
        parts.append(f'<p class="note">{escape(section.note)}</p>')
    return "\n".join([*parts, "</section>"])


def _figure(name: str, scene: Scene) -> str:
    drawing = to_svg(scene, name)
    fits = scene.width <= WIDTH
    if fits:
        drawing = drawing.replace("<svg ", '<svg class="fits" ', 1)
    # What is wider than the page scrolls, by keyboard as well.
    focus = "" if fits else ' tabindex="0"'
    caption = f"<figcaption>{escape(scene.title)}</figcaption>"
    return f"<figure{focus}>{caption}\n{drawing}\n</figure>"


def _table(table: Table) -> str:
    is_word = [_holds_words(table, column) for column in range(len(table.header))]
    head = "".join(
        f'<th scope="col"{_class(word)}>{escape(cell)}</th>'
        for cell, word in zip(table.header, is_word, strict=True)
    )
    rows = "\n".join(_row(row, is_word) for row in table.rows)
    written = (
        f'<div class="scroll"><table><caption>{escape(table.caption)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>"
    )
    if not table.is_folded:
        return written
    return f"<details><summary>{escape(table.caption)}</summary>\n{written}</details>"


def _row(row: Sequence[str], is_word: Sequence[bool]) -> str:
    cells = "".join(
        f"<td{_class(word)}>{escape(cell)}</td>"
        for cell, word in zip(row[1:], is_word[1:], strict=True)
    )
    return f'<tr><th scope="row">{escape(row[0])}</th>{cells}</tr>'


def _holds_words(table: Table, column: int) -> bool:
    """Whether a column stands at the left: its cells begin with letters."""
    return any(row[column][:1].isalpha() or row[column][:1] == "+" for row in table.rows)


def _class(word: bool) -> str:
    return ' class="word"' if word else ""


def _footer(run: Run) -> str:
    return (
        f"Made by freescale report from {run.directory.resolve()}, run {run.facts['run']}, Python"
        f" {run.facts['python']}. This page loads nothing from anywhere."
    )
