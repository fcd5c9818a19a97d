"""Whether every collective gives the right values.

Every rank can say what each of them sends, so that what has to arrive is put together by plain
indexing on the CPU, not by another backend. Outputs are filled with other values before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

from freescale_pg.operators import gather_rows
from gpu_check.ranks.setting import Setting

# What a collective gave, and what it had to.
Pair = tuple[torch.Tensor, torch.Tensor]
_DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.uint8)
_POISON = 77


class Data:
    """What the ranks send, of one dtype and about one size."""

    def __init__(self, setting: Setting, elements: int, dtype: torch.dtype) -> None:
        self.rank, self.size, self.device = setting.rank, setting.size, setting.device
        self.elements, self.dtype = elements, dtype

    def sent(self, source: int, elements: int, salt: int = 0) -> torch.Tensor:
        """What a rank sends, on the CPU: differs by rank, salt and element."""
        ramp = torch.arange(elements) * 7 + source * 31 + salt * 53
        # Whole numbers below 64 are exact in each dtype, and never the poison.
        return (ramp % 64).to(self.dtype)

    def own(self, elements: int, salt: int = 0) -> torch.Tensor:
        """What this rank sends, on its device."""
        return self.sent(self.rank, elements, salt).to(self.device)

    def empty(self, elements: int) -> torch.Tensor:
        """An output."""
        return torch.full((elements,), _POISON, dtype=self.dtype, device=self.device)

    def split(self, source: int, destination: int) -> int:
        """How much goes from one rank to another: ragged, and nothing for one pair in five."""
        return self.elements * ((source + 2 * destination) % 5) // 2

    def splits_from(self, source: int) -> list[int]:
        """How much a rank sends to each."""
        return [self.split(source, destination) for destination in range(self.size)]

    def splits_to(self, destination: int) -> list[int]:
        """How much a rank gets from each."""
        return [self.split(source, destination) for source in range(self.size)]

    def expected_exchange(self) -> list[torch.Tensor]:
        """What this rank gets from each in a ragged exchange."""
        pieces = []
        for source in range(self.size):
            splits = self.splits_from(source)
            pieces.append(self.sent(source, sum(splits)).split(splits)[self.rank])
        return pieces


def _all_to_all_single(data: Data) -> Iterator[Pair]:
    total = data.elements * data.size
    output = data.empty(total)
    dist.all_to_all_single(output, data.own(total))
    parts = [data.sent(source, total).chunk(data.size)[data.rank] for source in range(data.size)]
    yield output, torch.cat(parts)


def _all_to_all_single_ragged(data: Data) -> Iterator[Pair]:
    sends, receives = data.splits_from(data.rank), data.splits_to(data.rank)
    output = data.empty(sum(receives))
    dist.all_to_all_single(output, data.own(sum(sends)), receives, sends)
    yield output, torch.cat(data.expected_exchange())


def _all_to_all(data: Data) -> Iterator[Pair]:
    sends = data.splits_from(data.rank)
    outputs = [data.empty(elements) for elements in data.splits_to(data.rank)]
    dist.all_to_all(outputs, list(data.own(sum(sends)).split(sends)))
    yield from zip(outputs, data.expected_exchange(), strict=True)


def _all_gather(data: Data) -> Iterator[Pair]:
    outputs = [data.empty(data.elements) for _ in range(data.size)]
    dist.all_gather(outputs, data.own(data.elements))
    for source, output in enumerate(outputs):
        yield output, data.sent(source, data.elements)


def _all_gather_into_tensor(data: Data) -> Iterator[Pair]:
    output = data.empty(data.elements * data.size)
    gather_rows(output, data.own(data.elements))
    yield output, torch.cat([data.sent(source, data.elements) for source in range(data.size)])


def _broadcast(data: Data) -> Iterator[Pair]:
    for root in range(data.size):
        tensor = data.own(data.elements) if root == data.rank else data.empty(data.elements)
        dist.broadcast(tensor, root)
        yield tensor, data.sent(root, data.elements)


def _scatter(data: Data) -> Iterator[Pair]:
    for root in range(data.size):
        output = data.empty(data.elements)
        parts = None
        if root == data.rank:
            parts = [data.own(data.elements, salt=rank) for rank in range(data.size)]
        dist.scatter(output, parts, root)
        yield output, data.sent(root, data.elements, salt=data.rank)


def _gather(data: Data) -> Iterator[Pair]:
    for root in range(data.size):
        outputs = None
        if root == data.rank:
            outputs = [data.empty(data.elements) for _ in range(data.size)]
        dist.gather(data.own(data.elements), outputs, root)
        for source, output in enumerate(outputs or []):
            yield output, data.sent(source, data.elements)


def _send_and_receive(data: Data) -> Iterator[Pair]:
    output = data.empty(data.elements)
    before, after = (data.rank - 1) % data.size, (data.rank + 1) % data.size
    own = data.own(data.elements)
    works = [dist.isend(own, after), dist.irecv(output, before)]
    for work in works:
        assert work is not None
        work.wait()
    yield output, data.sent(before, data.elements)


def _strided(data: Data) -> Iterator[Pair]:
    """Tensors that are not contiguous."""
    wide = data.own(2 * data.elements * data.size)
    output = data.empty(data.elements * data.size)
    dist.all_to_all_single(output, wide[::2])
    pieces = [
        data.sent(source, 2 * data.elements * data.size)[::2].chunk(data.size)[data.rank]
        for source in range(data.size)
    ]
    yield output, torch.cat(pieces)


_CASES: dict[str, Callable[[Data], Iterator[Pair]]] = {
    "all_to_all_single": _all_to_all_single,
    "all_to_all_single, ragged": _all_to_all_single_ragged,
    "all_to_all_single of a strided tensor": _strided,
    "all_to_all, ragged": _all_to_all,
    "all_gather": _all_gather,
    "all_gather_into_tensor": _all_gather_into_tensor,
    "broadcast": _broadcast,
    "scatter": _scatter,
    "gather": _gather,
    "send and receive": _send_and_receive,
}


def _is_right(case: Callable[[Data], Iterator[Pair]], data: Data) -> bool:
    # All pairs before any is compared: on a GPU that waits for the device.
    return all(torch.equal(given.cpu(), expected) for given, expected in list(case(data)))


def run(setting: Setting) -> None:
    """Tells for each collective whether it is right for all sizes and dtypes."""
    # Inline, one chunk, and several chunks.
    sizes = (3, 5000) if setting.short else (3, 5000, 1_000_000)
    for name, case in _CASES.items():
        right = [
            _is_right(case, Data(setting, elements, dtype))
            for elements in sizes
            for dtype in _DTYPES
        ]
        setting.expect(f"{name} is right", all(right))
