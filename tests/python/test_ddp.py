"""DistributedDataParallel in its less usual forms, beside the same on gloo."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _BufferCommHookLocation

from harness.data import assert_same_bits, numbers
from harness.launch import Launcher

pytestmark = pytest.mark.freescale_only

FEATURES = 8
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


class Branches(nn.Module):
    """Two layers, of which the second contributes nothing to the loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.used = nn.Linear(FEATURES, 4)
        self.unused = nn.Linear(FEATURES, 4)

    def forward(self, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.used(batch), self.unused(batch)


def batch_of(step: int, rank: int) -> torch.Tensor:
    return numbers((6, FEATURES), key=("batch", step, rank))


def outcome(run: Callable[[dist.ProcessGroup], object], group: dist.ProcessGroup) -> object:
    """What a training returns, or the first words of its error."""
    try:
        return run(group)
    except RuntimeError as error:
        return str(error)[:60]


def check_unused_output(rank: int, size: int) -> None:
    def train(group: dist.ProcessGroup) -> list[torch.Tensor]:
        model = DistributedDataParallel(Branches(), process_group=group, static_graph=True)
        for step in range(6):
            model.zero_grad()
            model(batch_of(step, rank))[0].square().mean().backward()
        return [p.grad.clone() for p in model.module.used.parameters() if p.grad is not None]

    ours = outcome(train, dist.group.WORLD)
    theirs = outcome(train, dist.new_group(backend="gloo"))
    if isinstance(ours, str) or isinstance(theirs, str):
        assert ours == theirs
        return
    torch.testing.assert_close(ours, theirs, **CLOSE)


def check_buffers_of_joined_ranks(rank: int, size: int) -> None:
    """A hook of the program synchronises the buffers, also on ranks that have joined."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(FEATURES, 4), nn.BatchNorm1d(4)))
    means = []

    def average(
        module: DistributedDataParallel, buffers: dict[str, torch.Tensor]
    ) -> list[torch.futures.Future[torch.Tensor]]:
        mean = next(buffer for name, buffer in buffers.items() if name.endswith("running_mean"))
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        means.append(mean.clone())
        return []

    model._register_buffer_comm_hook(model, average, _BufferCommHookLocation.PRE_FORWARD)
    with model.join():
        for step in range(2 + rank):
            model(batch_of(step, rank)).square().mean().backward()
    # As often as the rank with the most batches, and the same everywhere.
    assert len(means) == 2 + size - 1
    for number, mean in enumerate(means):
        copies = [torch.empty_like(mean) for _ in range(size)]
        dist.all_gather(copies, mean)
        assert_same_bits(copies[size - 1], mean, number)


def check_compression_of_uneven_inputs(rank: int, size: int) -> None:
    def train(group: dist.ProcessGroup) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(FEATURES, 4), process_group=group)
        model.register_comm_hook(group, fp16_compress_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with model.join():
            for step in range(1 + rank):
                optimizer.zero_grad()
                model(batch_of(step, rank)).square().mean().backward()
                optimizer.step()
        return [parameter.detach().clone() for parameter in model.parameters()]

    ours = train(dist.group.WORLD)
    theirs = train(dist.new_group(backend="gloo"))
    # Half precision: a few units of its last place.
    torch.testing.assert_close(ours, theirs, rtol=5e-3, atol=1e-3)


def check_bfloat16(rank: int, size: int) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(FEATURES, 4).to(torch.bfloat16))
    losses = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(8):
        optimizer.zero_grad()
        loss = model(batch_of(0, rank).to(torch.bfloat16)).float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < losses[0]
    for parameter in model.parameters():
        copies = [torch.empty_like(parameter) for _ in range(size)]
        dist.all_gather(copies, parameter.detach())
        for copy in copies:
            assert_same_bits(copy, parameter.detach(), "parameters of all ranks")


def test_static_graph_with_an_unused_output(launch: Launcher) -> None:
    launch(check_unused_output, 2, checks_footprint=False)


def test_buffer_hook_of_joined_ranks(launch: Launcher) -> None:
    launch(check_buffers_of_joined_ranks, 3)


def test_compression_of_uneven_inputs(launch: Launcher) -> None:
    launch(check_compression_of_uneven_inputs, 3, checks_footprint=False)


def test_bfloat16(launch: Launcher) -> None:
    launch(check_bfloat16, 2)
