"""One rank's part of one call: its tensors, what they must hold afterwards, its reduction."""

import functools
import zlib
from collections.abc import Callable

import torch
import torch.distributed as dist

import freescale_pg as fs
from harness.data import arbitrary, assert_same_bits, numbers, poisoned
from harness.layout import LAYOUTS, assert_surroundings_untouched, laid_out
from harness.program import REDUCTIONS, Call

FOLDS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PREMUL_SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
FACTOR = 0.3
HALVES = (torch.float16, torch.bfloat16)


def reduced(op: str, parts: list[torch.Tensor]) -> torch.Tensor:
    """What the reduction of all ranks' parts must be, to the bit.

    The plain fold in rank order, in the parts' dtype. Half-precision sums and products are
    calculated in single precision and rounded once.
    """
    dtype = parts[0].dtype
    if op == "PREMUL_SUM":
        parts = [part * FACTOR for part in parts]
    if dtype in HALVES and op not in ("MIN", "MAX"):
        parts = [part.float() for part in parts]
    result = functools.reduce(FOLDS[op], parts)
    if op == "AVG":
        result = result.div(len(parts), rounding_mode=None if dtype.is_floating_point else "trunc")
    return result.to(dtype)


class CallSite:
    """What a rank needs for one call.

    Args:
        call: Which call.
        occurrence: How many equal calls the program has before it; contents differ by it.
        group: Of the call.
    """

    def __init__(self, call: Call, occurrence: int, group: dist.ProcessGroup) -> None:
        self.call = call
        self.group = group
        self.me = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.dtype: torch.dtype = getattr(torch, call.dtype)
        self.asynchronous = not call.blocking
        self.root = call.root
        self.global_root = dist.get_global_rank(group, call.root)
        self._salt = (occurrence, zlib.crc32(repr(call).encode()))
        self._expected: list[tuple[str, torch.Tensor, torch.Tensor]] = []

    @property
    def priority(self) -> fs.Priority | None:
        levels = list(fs.Priority)
        if self.call.priority is None:
            return None
        return levels[(self.call.priority + self.me) % len(levels)]

    @property
    def op(self) -> dist.ReduceOp:
        if self.call.op == "PREMUL_SUM":
            made: dist.ReduceOp = dist._make_nccl_premul_sum(FACTOR)
            return made
        named: dist.ReduceOp = getattr(dist.ReduceOp, self.call.op)
        return named

    def rows(self, sender: int, receiver: int) -> int:
        return self.call.rows[sender][receiver]

    def piece(self, rows: int, *key: object) -> torch.Tensor:
        """The contents that belong to this call and key, on whichever rank."""
        shape = () if self.call.scalar else (rows, *self.call.tail)
        make = numbers if self.call.kind in REDUCTIONS else arbitrary
        return make(shape, self.dtype, key=(self._salt, key))

    def given(self, contents: torch.Tensor) -> torch.Tensor:
        """An input, which the call must leave as it is."""
        return self._watched("input", contents, contents, self.call.layouts[0] + self.me)

    def taken(self, expected: torch.Tensor, layout: int | None = None) -> torch.Tensor:
        """An output, which must hold ``expected`` afterwards."""
        blank = poisoned(tuple(expected.shape), self.dtype)
        return self.changed(blank, expected, layout)

    def changed(
        self, contents: torch.Tensor, expected: torch.Tensor, layout: int | None = None
    ) -> torch.Tensor:
        """A tensor that is input and output."""
        chosen = self.call.layouts[1] + self.me if layout is None else layout
        return self._watched("output", contents, expected, chosen)

    def returned(self, output: torch.Tensor, expected: torch.Tensor) -> None:
        """Says what a tensor that a call made must hold."""
        self._expected.append(("returned", output, expected))

    def _watched(
        self, name: str, contents: torch.Tensor, expected: torch.Tensor, layout: int
    ) -> torch.Tensor:
        view = laid_out(contents, LAYOUTS[layout % len(LAYOUTS)])
        self._expected.append((name, view, expected))
        return view

    def check(self) -> None:
        """Compares all tensors of the call with what they must hold; call it when it is over."""
        for number, (name, actual, expected) in enumerate(self._expected):
            what = f"{self.call}, group rank {self.me}, tensor {number} ({name})"
            # A copy: views of no elements may have strides that bits cannot be read through.
            assert_same_bits(actual.clone(memory_format=torch.contiguous_format), expected, what)
            if name != "returned":
                assert_surroundings_untouched(actual, what)
