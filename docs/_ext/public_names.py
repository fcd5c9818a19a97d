"""Warns of public names of the package that are on no page."""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.autodoc.mock import mock
from sphinx.util import logging

_PACKAGE = "freescale_pg"
_LOGGER = logging.getLogger(__name__)


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("env-check-consistency", _check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _check(app: Sphinx, env: BuildEnvironment) -> None:
    documented = set(env.get_domain("py").objects)
    with mock(app.config.autodoc_mock_imports):
        shown = {id(found) for found in map(_find, documented) if found is not None}
        for module in _public_modules():
            for name in importlib.import_module(module).__all__:
                if f"{module}.{name}" in documented:
                    continue
                if id(_find(f"{module}.{name}")) not in shown:
                    _LOGGER.warning("%s.%s is public, and on no page", module, name)


def _public_modules() -> Iterator[str]:
    """The package and each module right below it that says what is public."""
    package = importlib.import_module(_PACKAGE)
    yield _PACKAGE
    for info in pkgutil.iter_modules(package.__path__, f"{_PACKAGE}."):
        private = info.name.rpartition(".")[2].startswith("_")
        if not private and hasattr(importlib.import_module(info.name), "__all__"):
            yield info.name


def _find(path: str) -> Any:
    """What a documented name names: a module, a function, a class; None for anything within."""
    try:
        return importlib.import_module(path)
    except ImportError:
        module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
