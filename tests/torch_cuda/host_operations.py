"""Every operation on CUDA tensors, computed by the host: the stand-in device has no kernels.

What torch is about to compute on a device is computed on the CPU from copies, and the results are
copied back. Memory, copies, streams and the exchanges between ranks stay those of the device, and
tensors that are not all on it are an error as there. So a program that trains like this has its
tensors where they should be. Nothing follows for the order of streams, as each operation blocks.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

import host_kernels
from freescale_pg.embedding import overlap
from freescale_pg.embedding.background import Background

# They touch no element, or only by copies that the stand-in runtime has.
_NATIVE = {
    *("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"),
    *("set_", "resize_", "record_stream", "is_pinned", "_pin_memory", "lift_fresh"),
}


# Besides copies, these take tensors of the CPU beside those of a device: as indices.
_INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_"}


@contextmanager
def computing_on_host() -> Iterator[None]:
    """Has the host compute for this thread, its backward passes and its overlapped embeddings."""
    kernels = host_kernels.provide()  # for what the backend combines, which no mode sees
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlap, "Background", _BackgroundOnHost)
        # Other ways of attention are one operation, which the CPU has not.
        with sdpa_kernel(SDPBackend.MATH), HostOperations():
            yield
    del kernels


class _BackgroundOnHost(Background):
    """A mode is that of one thread."""

    def __init__(self, call: Callable[[], None]) -> None:
        def under_mode() -> None:
            with HostOperations():
                call()

        super().__init__(under_mode)


class HostOperations(TorchDispatchMode):
    """While it is active: in the calling thread, and in those of its backward passes."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes again with the tensor that is inside
        if _asks_for_shapes() or not _is_on_device(func, args, kwargs):
            return func(*args, **kwargs)
        # What consists of others, some of which may be views.
        with self:
            result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        _check_devices(func, args, kwargs)
        return _compute(func, args, kwargs)


def _asks_for_shapes() -> bool:
    """Whether nothing is to be computed: DTensor does so, and its mode comes after this one."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def _is_on_device(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether it would launch a kernel."""
    if func.namespace != "aten" or _name(func) in _NATIVE:
        return False
    if func.is_view:
        return False
    return any(_is_cuda(each) for each in tree_flatten((args, kwargs))[0])


def _name(func: Any) -> str:
    return func._schema.name.split("::")[1]


def _check_devices(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises what a device would for tensors that are not all on it: here they could be mixed."""
    if _name(func) in ("copy_", "_to_copy"):
        return
    written = {id(value) for value in _written(func, args, kwargs)}
    given = args[:1] if _name(func) in _INDEXED else args
    where = {
        value.device
        for value in tree_flatten((given, kwargs))[0]
        if isinstance(value, torch.Tensor)
        and (value.dim() or value.is_cuda or id(value) in written)
    }
    if len(where) > 1:
        raise RuntimeError(f"{func}: tensors on {sorted(map(str, where))}")


def _is_cuda(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.is_cuda
    return isinstance(value, torch.device) and value.type == "cuda"


def _compute(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def on_host(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if not isinstance(value, torch.Tensor) or not value.is_cuda:
            return value
        if id(value) not in copies:
            copies[id(value)] = (value, download(value))
        return copies[id(value)][1]

    where = _device_of_results(args, kwargs)
    host_args, host_kwargs = tree_map(on_host, (args, kwargs))
    result = func(*host_args, **host_kwargs)
    for value in _written(func, args, kwargs):
        if value.is_cuda:
            upload(copies[id(value)][1], value)
    # Results that are arguments, as of operations in place.
    given = {id(copy): original for original, copy in copies.values()}

    def on_device(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or where is None:
            return value
        if id(value) in given:
            return given[id(value)]
        return upload(
            value, torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=where)
        )

    return tree_map(on_device, result)


def _device_of_results(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
    """None: the CPU."""
    asked = kwargs.get("device")
    if asked is not None:
        return asked if asked.type == "cuda" else None
    first = next(each for each in tree_flatten((args, kwargs))[0] if _is_cuda(each))
    return first.device if isinstance(first, torch.Tensor) else first


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    written = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            written += [each for each in tree_flatten(value)[0] if isinstance(each, torch.Tensor)]
    return written


def download(tensor: torch.Tensor) -> torch.Tensor:
    """Copies a tensor of any layout to the CPU."""
    bytes_ = _span(tensor).cpu()
    copy = torch.empty(0, dtype=tensor.dtype)
    return copy.set_(bytes_.untyped_storage(), 0, tensor.shape, tensor.stride())


def upload(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Copies a tensor of the CPU into one of the same layout, and returns that."""
    _span(target).copy_(_span(source))
    return target


def _span(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes from a tensor's first element to its last, with what lies between them."""
    extent = 0
    if tensor.numel():
        steps = (
            (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        )
        extent = (1 + sum(steps)) * tensor.element_size()
    start = tensor.storage_offset() * tensor.element_size()
    span = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return span.set_(tensor.untyped_storage(), start, (extent,), (1,))
