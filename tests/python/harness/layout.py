"""Tensors of any shape in memory that is laid out in some other way."""

import torch

from harness.data import assert_same_bits, poisoned

LAYOUTS = ["contiguous", "dimensions reversed", "every other element", "within a larger tensor"]


def laid_out(contents: torch.Tensor, layout: str) -> torch.Tensor:
    """Returns the contents in a view of poisoned memory."""
    shape, dtype = tuple(contents.shape), contents.dtype
    if layout == "contiguous":
        view = poisoned(shape, dtype)
    elif layout == "dimensions reversed":
        view = poisoned(shape[::-1], dtype).permute(tuple(reversed(range(len(shape)))))
    elif layout == "every other element":
        view = poisoned((*shape, 2), dtype)[..., 1]
    else:
        # Contiguous, but not at the start of its storage.
        count = contents.numel()
        view = poisoned(count + 5, dtype)[3 : 3 + count].view(shape)
    view.copy_(contents)
    return view


def assert_surroundings_untouched(view: torch.Tensor, what: object) -> None:
    """Fails if memory of the view's storage that is not the view's has lost its poison."""
    whole = torch.empty(0, dtype=view.dtype).set_(view.untyped_storage())
    outside = torch.ones_like(whole, dtype=torch.bool)
    outside.as_strided(view.shape, view.stride(), view.storage_offset()).fill_(False)
    indices = outside.nonzero().flatten()
    # Indexing has no kernels for some dtypes, bytes have.
    around = whole.view(torch.uint8).view(-1, view.dtype.itemsize)[indices].flatten()
    expected = poisoned(len(indices), view.dtype).view(torch.uint8)
    assert_same_bits(around, expected, f"{what}: memory around it")
