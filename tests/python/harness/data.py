"""Tensors for tests: contents that differ by rank and element, and exact comparison."""

import math
import zlib

import torch

# All that torch can hold as bytes.
BYTE_DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int16,
    torch.uint32,
    torch.int32,
    torch.uint64,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex32,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]

POISON = 0xA5


def arbitrary(
    shape: tuple[int, ...] | int, dtype: torch.dtype = torch.float32, *, key: tuple[object, ...]
) -> torch.Tensor:
    """Returns the tensor that belongs to ``key``, of arbitrary bits: NaN, infinity, denormals too.

    Args:
        shape: Of the tensor.
        dtype: Of the tensor.
        key: What the contents depend on, e.g. (sender, receiver). Any process that calls this with
            the same arguments gets the same bits.
    """
    shape = (shape,) if isinstance(shape, int) else shape
    generator = torch.Generator().manual_seed(zlib.crc32(repr(key).encode()))
    count = math.prod(shape)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator, dtype=torch.uint8).bool()
    raw = torch.randint(0, 256, (count * dtype.itemsize,), generator=generator, dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


def numbers(
    shape: tuple[int, ...] | int, dtype: torch.dtype = torch.float32, *, key: tuple[object, ...]
) -> torch.Tensor:
    """Returns a tensor to calculate with: as :func:`arbitrary`, of small finite numbers.

    Floating-point contents have all bits of their fraction in use, so that the order of a sum
    shows in the result.
    """
    shape = (shape,) if isinstance(shape, int) else shape
    generator = torch.Generator().manual_seed(zlib.crc32(repr(key).encode()))
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator, dtype=torch.uint8).bool()
    if dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    low = 0 if dtype in (torch.uint8, torch.uint16, torch.uint32, torch.uint64) else -3
    return torch.randint(low, 4, shape, generator=generator, dtype=torch.int64).to(dtype)


def poisoned(shape: tuple[int, ...] | int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Returns an output whose contents no correct collective leaves in place."""
    tensor = torch.empty(shape, dtype=dtype)
    bits(tensor).fill_(1 if dtype == torch.bool else POISON)
    return tensor


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the bytes of a contiguous tensor, flat and without a copy."""
    assert tensor.is_contiguous()
    return tensor.view(-1).view(torch.uint8) if tensor.dim() else tensor.view(1).view(torch.uint8)


def assert_same_bits(actual: torch.Tensor, expected: torch.Tensor, what: object) -> None:
    """Fails unless both tensors have the same shape, dtype and bytes; names the first that differs.

    Args:
        actual: As received. May be non-contiguous.
        expected: As calculated here.
        what: Names the case in the message.
    """
    assert actual.dtype == expected.dtype, f"{what}: {actual.dtype}, expected {expected.dtype}"
    assert actual.shape == expected.shape, f"{what}: {actual.shape}, expected {expected.shape}"
    left, right = bits(actual.contiguous()), bits(expected.contiguous())
    wrong = (left != right).nonzero()
    assert wrong.numel() == 0, (
        f"{what}: {wrong.numel()} of {left.numel()} bytes differ, the first at byte"
        f" {int(wrong[0])}: {int(left[wrong[0]])}, expected {int(right[wrong[0]])}"
    )
