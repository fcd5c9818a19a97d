"""Kernels for CUDA tensors that the host computes: the stand-in device has none."""

from collections.abc import Callable

import torch

# What combining the contributions of ranks calls, by aten's names.
INTO_OUTPUT = ["add.out", "mul.out", "minimum.out", "maximum.out"]


def provide() -> torch.library.Library:
    """Has the host compute a few operations on CUDA tensors, for as long as the library lives.

    They block the caller, as real kernels do not; but they read and write when the current stream
    gets there.
    """
    library = torch.library.Library("aten", "IMPL")
    for name in INTO_OUTPUT:
        library.impl(name, on_host(name), "CUDA")
    library.impl("div_.Tensor", divide_on_host, "CUDA")
    return library


def on_host(name: str) -> Callable[..., torch.Tensor]:
    operation, overload = name.split(".")
    compute = getattr(getattr(torch.ops.aten, operation), overload)

    def run(
        first: torch.Tensor, second: torch.Tensor, *, out: torch.Tensor, **options: object
    ) -> torch.Tensor:
        result = torch.empty(out.shape, dtype=out.dtype)
        compute(first.cpu(), second.cpu(), out=result, **options)
        return out.copy_(result)

    return run


def divide_on_host(tensor: torch.Tensor, divisor: float) -> torch.Tensor:
    return tensor.copy_(tensor.cpu().div_(divisor))
