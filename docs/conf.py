"""Settings of the documentation: `make docs` builds it into build/docs/html.

Pages are Markdown, so that they can be read where the repository is browsed as well; those of the
Python API are made from docstrings.
"""

import importlib.metadata
import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).resolve().parent / "_ext"))

project = "freescale_pg"
author = "the freescale_pg authors"
project_copyright = author
release = importlib.metadata.version("freescale_pg")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "public_names",
    "source_pages",
]
exclude_patterns = ["_ext", "_static"]

# A link, an anchor or a name in a docstring that leads nowhere is a warning, which ends the build.
nitpicky = True
nitpick_ignore_regex = [
    # Other projects', whose pages would have to be fetched to be linked to.
    (r"py:.*", r"(torch|dist|nn|np|numpy)\..*"),
    (r"py:.*", r"(collections|contextlib|dataclasses|datetime|enum|os|pathlib|typing)\..*"),
    # What EmbeddingExchange passes on, and other types that nobody makes himself.
    (r"py:class", r"freescale_pg\.embedding\.(exchange|placement|request|shard)\..*"),
    (r"py:class", r"freescale_pg\.balance\.(lengths\.ArrowColumn|online\.[a-z]+\.\w+)"),
    (r"py:class", r"freescale_pg\.observe\.(meter|recorder)\.T"),
]
myst_heading_anchors = 4

autodoc_mock_imports = ["torchrec", "fbgemm_gpu"]
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
napoleon_numpy_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
pygments_style = "friendly"
pygments_dark_style = "monokai"
html_title = f"freescale_pg {release}"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_copy_source = False
# Of what a block shows, what a reader would type or keep.
copybutton_prompt_text = ">>> |... "
copybutton_prompt_is_regexp = True


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _link_pages)


def _link_pages(
    app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """Docstrings name pages as files of the repository; here they are a click away."""
    for place, line in enumerate(lines):
        lines[place] = re.sub(r"``docs/([a-z-]+)\.md``", r":doc:`/\1`", line)
