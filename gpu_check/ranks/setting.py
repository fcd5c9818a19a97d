"""What a program on ranks knows of its run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

from gpu_check.finding import Expectation, Fact, Finding, to_json


@dataclass(frozen=True)
class Setting:
    """One rank's view. The default group is of the backend ``freescale``.

    Args:
        rank: Of the default group.
        size: Ranks in it.
        device: Where this rank's tensors are.
        judges: A group of all ranks that has nothing to do with what is being tried.
        short: Few rounds and small sizes, as in a rehearsal.
        zero_cta: NCCL is to use copy engines.
        by_nccl: The default group's reductions are NCCL's; otherwise exchanges.
    """

    rank: int
    size: int
    device: torch.device
    judges: dist.ProcessGroup
    short: bool
    zero_cta: bool
    by_nccl: bool = False

    @property
    def on_gpu(self) -> bool:
        """Whether it is no rehearsal."""
        return self.device.type == "cuda"

    @property
    def reference(self) -> str | None:
        """The backend to compare with; None where ranks share a GPU, which NCCL refuses."""
        if not self.on_gpu:
            return "gloo"
        return "nccl" if torch.cuda.device_count() >= self.size else None

    def tell(self, finding: Finding) -> None:
        """Gives a finding to whoever runs the row, on rank 0."""
        if self.rank == 0:
            print(json.dumps(to_json(finding)), flush=True)

    def fact(self, name: str, value: float | str, unit: str = "") -> None:
        """Tells a fact, of rank 0."""
        self.tell(Fact(name, value, unit))

    def expect(self, rule: str, holds: bool) -> None:
        """Tells whether a rule holds on all ranks; collective."""
        everyones: list[bool | None] = [None] * self.size
        dist.all_gather_object(everyones, holds, group=self.judges)
        self.tell(Expectation(rule, all(everyones)))

    def is_same_everywhere(self, tensor: torch.Tensor) -> bool:
        """Whether all ranks have the same bits as rank 0; collective."""
        own = tensor.cpu().view(torch.uint8)
        first = own.clone()
        dist.broadcast(first, 0, group=self.judges)
        return torch.equal(own, first)

    def synchronize(self) -> None:
        """Waits until the device has nothing to do."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def synchronize_stream(self) -> None:
        """Waits until the current stream has nothing to do."""
        if self.on_gpu:
            torch.cuda.current_stream().synchronize()

    @contextmanager
    def side_stream(self) -> Iterator[None]:
        """Makes another stream of the device current, which continues where the current one is."""
        if not self.on_gpu:
            yield
            return
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            yield

    def delay(self) -> None:
        """Keeps the current stream busy for some milliseconds."""
        if self.on_gpu:
            torch.cuda._sleep(10_000_000)
