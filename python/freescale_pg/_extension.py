"""Loads the C++ module, and says what to do where it cannot be loaded."""

# First, so that libtorch and the base classes of our own are in the process.
import torch
import torch.distributed

try:
    import freescale_pg._C as _C
except ImportError as error:
    raise ImportError(
        f"freescale_pg._C does not load into torch {torch.__version__}: {error}. The module is"
        " built for one minor version of torch; reinstall freescale_pg beside this one."
    ) from error

__all__ = ["_C"]
