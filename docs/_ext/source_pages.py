"""Gives each file of the repository that a page links to a page of its own.

Where the repository is browsed, ``[threading](../cpp/base/futex.h)`` leads to the file. Here it
leads to the file's text as of this build, so that the site needs no other server.
"""

import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.osutil import relative_uri

_ROOT = Path(__file__).resolve().parents[2]
_LOGGER = logging.getLogger(__name__)
_LINKS = (addnodes.download_reference, addnodes.pending_xref)
_LEXERS = {".h": "cpp", ".cc": "cpp", ".py": "python", ".md": "markdown", ".toml": "toml"}


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    # Before Sphinx collects what is to be downloaded.
    app.connect("doctree-read", _keep_links, priority=100)
    app.connect("env-purge-doc", _forget)
    app.connect("env-merge-info", _merge)
    app.connect("doctree-resolved", _resolve)
    app.connect("html-collect-pages", _pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True, "version": "1"}


def _sources(env: BuildEnvironment) -> dict[str, set[str]]:
    """By page: the files that it links to, relative to the root of the repository."""
    if not hasattr(env, "repository_sources"):
        env.repository_sources = {}  # type: ignore[attr-defined]
    found: dict[str, set[str]] = env.repository_sources  # type: ignore[attr-defined]
    return found


def _keep_links(app: Sphinx, doctree: nodes.document) -> None:
    """Makes links of what MyST takes for downloads, or for pages: files outside of docs/."""
    env = app.env
    for node in list(doctree.findall(lambda node: isinstance(node, _LINKS))):
        source = _target(env, node)
        if source is None or not source.is_file() or not source.is_relative_to(_ROOT):
            continue  # A page, or Sphinx warns.
        name = source.relative_to(_ROOT).as_posix()
        _sources(env).setdefault(env.docname, set()).add(name)
        link = nodes.reference("", "", *node.children, internal=True)
        link["repository_source"] = name
        node.replace_self(link)


def _target(env: BuildEnvironment, node: nodes.Element) -> Path | None:
    """The file that a link leads to; None if it is a page."""
    if isinstance(node, addnodes.download_reference):
        return (Path(env.srcdir, env.docname).parent / node["reftarget"]).resolve()
    if node.get("refdomain") != "doc" or node["reftarget"] in env.found_docs:
        return None
    # The names of other Markdown files come without their ending.
    return Path(env.srcdir, f"{node['reftarget']}.md")


def _forget(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    _sources(env).pop(docname, None)


def _merge(
    app: Sphinx, env: BuildEnvironment, docnames: list[str], other: BuildEnvironment
) -> None:
    for docname in docnames:
        if docname in _sources(other):
            _sources(env)[docname] = _sources(other)[docname]


def _resolve(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    if app.builder.format != "html":
        return
    here = app.builder.get_target_uri(docname)
    for node in doctree.findall(nodes.reference):
        if name := node.get("repository_source"):
            node["refuri"] = relative_uri(here, app.builder.get_target_uri(_page(name)))


def _page(name: str) -> str:
    return posixpath.join("source", name)


def _pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    for name in sorted(set().union(*_sources(app.env).values())):
        path = _ROOT / name
        text = app.builder.highlighter.highlight_block(  # type: ignore[attr-defined]
            path.read_text(), _LEXERS.get(path.suffix, "text"), linenos=False, force=True
        )
        yield _page(name), {"title": name, "body": f"<h1>{name}</h1>\n{text}"}, "page.html"
