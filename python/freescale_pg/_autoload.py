"""Makes ``backend="freescale"`` known to torch.distributed, without an import by the user.

Two entry points of the installed package lead here:

* ``torch.backends`` (torch up to 2.13) calls :func:`register` at the end of every ``import torch``.
  It must cost next to nothing and must never raise, since torch would then fail to import.
* ``torch.distributed.backends`` (torch from 2.14 on) calls :func:`register_backend` when the name
  "freescale" is first used.

The C++ module is loaded with the first group, by :mod:`freescale_pg._creation`.
"""

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import Backend, _DistributedBackendOptions
    from torch.distributed import ProcessGroup

NAME = "freescale"


def register() -> None:
    """Registers the backend where torch cannot look it up by itself; logs instead of raising."""
    try:
        import torch.distributed as dist

        if dist.is_available() and not _torch_looks_up_backends():
            register_backend()
    except Exception:
        # Not warnings.warn: under `python -W error` it would raise, and `import torch` with it.
        logging.getLogger(__name__).warning(
            'torch.distributed has no backend "%s": its registration failed', NAME, exc_info=True
        )


def register_backend() -> None:
    """Registers the backend with torch.distributed. Calling it again changes nothing."""
    from torch.distributed import Backend, ProcessGroup

    if NAME.upper() in Backend._plugins:
        return
    Backend.register_backend(NAME, _create, extended_api=True, devices=_devices())
    # torch files plug-ins under CUSTOM, whose groups call themselves "custom". TorchRec takes that
    # for a fake group of its tests and copies locally instead of exchanging: wrong, and no error.
    Backend.backend_type_map[NAME] = ProcessGroup.BackendType.UNDEFINED
    if not _torch_looks_up_backends():
        _hide_from_default_choice()
        _file_under_undefined()


def _devices() -> list[str]:
    """Device types whose tensors this build of torch can have and the engine moves.

    Tensors of others get c10d's own error, which names the device type.
    """
    import torch

    return ["cpu", "cuda"] if torch.backends.cuda.is_built() else ["cpu"]


def _create(request: "_DistributedBackendOptions", options: object = None) -> "Backend":
    """Makes the backend of one group: torch's hook, called on every member."""
    from freescale_pg._creation import create_backend

    return create_backend(request, options)


def _torch_looks_up_backends() -> bool:
    """Whether this torch has the entry point group ``torch.distributed.backends`` (2.14)."""
    from torch.distributed import Backend

    return hasattr(Backend, "_ensure_backend_registered")


class _HiddenPlugins(dict[str, Any]):
    """Registered plug-ins; finds ours by name, but does not list it."""

    def keys(self) -> Any:
        return {name: None for name in self if name != NAME.upper()}.keys()


def _hide_from_default_choice() -> None:
    """Keeps "cpu:gloo" groups of other people working.

    As soon as any plug-in is listed, torch up to 2.13 gives groups made from a "device:backend"
    string no default backend, whether or not they name that plug-in.
    """
    from torch.distributed import Backend

    Backend._plugins = _HiddenPlugins(Backend._plugins)


def _file_under_undefined() -> None:
    """Makes groups file our backend under the type that ``backend_type_map`` holds for it.

    torch up to 2.13 reads that map for a group's default type, but files the backend itself under
    CUSTOM in any case; the two must agree. From 2.14 on it reads the map for both.
    """
    from torch.distributed import ProcessGroup

    types = ProcessGroup.BackendType
    original = ProcessGroup._register_backend

    def _register_backend(
        group: "ProcessGroup",
        device: "torch.device",
        backend_type: "ProcessGroup.BackendType",
        backend: "Backend | None" = None,
    ) -> None:
        # By name, not by class: with TORCH_DISTRIBUTED_DEBUG=DETAIL torch wraps the backend.
        ours = backend is not None and backend.name() == NAME
        if ours and backend_type == types.CUSTOM:
            backend_type = types.UNDEFINED
            # The default that torch chose for a "cpu:freescale" string, which names no gloo.
            if group._get_backend_name() == "gloo":
                group._set_default_backend(types.UNDEFINED)
        original(group, device, backend_type, backend)

    # setattr, as a plain assignment to a method does not pass the type check.
    setattr(ProcessGroup, "_register_backend", _register_backend)  # noqa: B010
