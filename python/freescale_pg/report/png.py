"""Writes a scene as PNG, with matplotlib."""

from pathlib import Path as FilePath

from freescale_pg.report.palette import PALETTE
from freescale_pg.report.scene import Box, Path, Scene

# Pixels of the file for one of the scene: sharp on dense displays and in print.
_SCALE = 2
# matplotlib's unit of lines and letters is a point, 1/72 inch.
_POINTS = 72
_ANCHORS = {"start": "left", "middle": "center", "end": "right"}


def write_png(scene: Scene, path: FilePath) -> None:
    """Writes a scene in the colours of a light page, on its ground.

    Raises:
        ImportError: matplotlib is not installed; says how to get it.
        OSError: The file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D
        from matplotlib.patches import Rectangle
    except ImportError as error:
        raise ImportError(
            "plots as PNG need matplotlib: pip install 'freescale_pg[report]'"
        ) from error
    size = (scene.width / _POINTS, scene.height / _POINTS)
    figure = Figure(figsize=size, dpi=_SCALE * _POINTS, facecolor=PALETTE["surface"].light)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, scene.width)
    axes.set_ylim(scene.height, 0)
    for place, shape in enumerate(scene.shapes):
        paint = PALETTE[shape.paint].light
        if isinstance(shape, Box):
            corner = (shape.x, shape.y)
            bar = Rectangle(corner, shape.width, shape.height, facecolor=paint, linewidth=0)
            bar.set(alpha=shape.opacity, zorder=place)
            axes.add_patch(bar)
        elif isinstance(shape, Path):
            xs, ys = zip(*shape.points, strict=True)
            line = Line2D(xs, ys, color=paint, linewidth=shape.width)
            line.set(linestyle="--" if shape.is_dashed else "-", zorder=place)
            axes.add_line(line)
        else:
            # parse_math: names of operations and hosts are no formulas.
            axes.text(
                *(shape.x, shape.y, shape.text),
                color=paint,
                size=shape.size,
                ha=_ANCHORS[shape.anchor],
                va="center_baseline",
                parse_math=False,
                zorder=place,
            )
    FigureCanvasAgg(figure).print_png(path)
