"""Writes a scene as SVG, for a page that has the palette as CSS variables."""

from html import escape

from freescale_pg.report.scene import Box, Path, Scene, Shape, Text


def to_svg(scene: Scene, name: str) -> str:
    """Returns an ``<svg>`` element to be put into HTML.

    Args:
        scene: What it shows.
        name: Unique in the page.
    """
    shapes = "\n".join(map(_shape, scene.shapes))
    # In HTML the namespace goes without saying.
    return (
        f'<svg role="img" aria-labelledby="{name}-title" viewBox="0 0 {scene.width:g}'
        f' {scene.height:g}" width="{scene.width:g}" height="{scene.height:g}">'
        f'<title id="{name}-title">{escape(scene.title)}</title>\n{shapes}\n</svg>'
    )


def _shape(shape: Shape) -> str:
    if isinstance(shape, Box):
        return _box(shape)
    if isinstance(shape, Path):
        return _path(shape)
    return _text(shape)


def _box(box: Box) -> str:
    place = (
        f'x="{_number(box.x)}" y="{_number(box.y)}"'
        f' width="{_number(box.width)}" height="{_number(box.height)}"'
    )
    opacity = f' fill-opacity="{_number(box.opacity)}"' if box.opacity < 1 else ""
    return _closed("rect", f'{place} fill="var(--{box.paint})"{opacity}', box.title)


def _path(path: Path) -> str:
    points = " ".join(f"{_number(x)},{_number(y)}" for x, y in path.points)
    dashes = ' stroke-dasharray="6 4"' if path.is_dashed else ""
    look = f'fill="none" stroke="var(--{path.paint})" stroke-width="{_number(path.width)}"'
    return _closed("polyline", f'points="{points}" {look}{dashes}', path.title)


def _closed(element: str, attributes: str, title: str) -> str:
    if not title:
        return f"<{element} {attributes}/>"
    return f"<{element} {attributes}><title>{escape(title)}</title></{element}>"


def _text(text: Text) -> str:
    return (
        f'<text x="{_number(text.x)}" y="{_number(text.y)}" text-anchor="{text.anchor}"'
        f' dominant-baseline="central" font-size="{_number(text.size)}"'
        f' fill="var(--{text.paint})">{escape(text.text)}</text>'
    )


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
