"""torch's data-parallel wrappers against the same training on one process."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from harness.data import assert_same_bits, numbers
from harness.launch import Launcher

STEPS = 3
BATCH = 8
FEATURES = 16
# Sums of the same numbers in another order, in single precision.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 4))


def batch_of(step: int, rank: int) -> torch.Tensor:
    return numbers((BATCH, FEATURES), key=("batch", step, rank))


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    output = model(batch)
    assert isinstance(output, torch.Tensor)
    return output.square().mean()


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> None:
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, batch_of(step, rank)).backward()
        optimizer.step()


def trained_alone(size: int) -> dict[str, torch.Tensor]:
    """Parameters after the same steps on one process that sees the batches of all ranks."""
    model = make_model()
    optimizer = make_optimizer(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        losses = [loss_of(model, batch_of(step, rank)) for rank in range(size)]
        (torch.stack(losses).sum() / size).backward()
        optimizer.step()
    return dict(model.state_dict())


def assert_like_alone(parameters: dict[str, torch.Tensor], size: int) -> None:
    expected = trained_alone(size)
    assert parameters.keys() == expected.keys()
    for name, value in parameters.items():
        torch.testing.assert_close(
            value, expected[name], msg=lambda m, n=name: f"{n}: {m}", **CLOSE
        )


def assert_same_on_all_ranks(parameters: dict[str, torch.Tensor], size: int) -> None:
    for name, value in parameters.items():
        copies = [torch.empty_like(value) for _ in range(size)]
        dist.all_gather(copies, value)
        for peer, other in enumerate(copies):
            assert_same_bits(value, other, f"{name} here and on rank {peer}")


def check_ddp(rank: int, size: int) -> None:
    # Buckets so small that each layer has its own: several all_reduces in flight.
    model = DistributedDataParallel(make_model(), bucket_cap_mb=0.001)
    train(model, make_optimizer(model), rank)
    assert_same_on_all_ranks(model.module.state_dict(), size)
    assert_like_alone(model.module.state_dict(), size)


def check_ddp_uneven(rank: int, size: int) -> None:
    """Ranks with fewer batches join in the collectives of the others."""
    model = DistributedDataParallel(make_model())
    optimizer = make_optimizer(model)
    with model.join():
        for step in range(2 + rank):
            optimizer.zero_grad()
            loss_of(model, batch_of(step, rank)).backward()
            optimizer.step()
    assert_same_on_all_ranks(model.module.state_dict(), size)


def check_ddp_hook(rank: int, size: int) -> None:
    """A communication hook works with the futures of our works."""

    def halve(
        process_group: dist.ProcessGroup, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        work = dist.all_reduce(bucket.buffer(), group=process_group, async_op=True)
        assert work is not None
        return work.get_future().then(lambda future: future.value()[0] / (2 * size))

    plain, hooked = DistributedDataParallel(make_model()), DistributedDataParallel(make_model())
    hooked.register_comm_hook(dist.group.WORLD, halve)
    for model in (plain, hooked):
        loss_of(model, batch_of(0, rank)).backward()
    for reference, halved in zip(plain.parameters(), hooked.parameters(), strict=True):
        assert reference.grad is not None
        torch.testing.assert_close(halved.grad, reference.grad / 2, **CLOSE)


def check_fsdp2(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (size,))
    model = make_model()
    for layer in model.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, make_optimizer(model), rank)
    whole = {}
    for name, value in model.state_dict().items():
        assert isinstance(value, DTensor)
        whole[name] = value.full_tensor()
    assert_same_on_all_ranks(whole, size)
    assert_like_alone(whole, size)


def check_zero(rank: int, size: int) -> None:
    model = DistributedDataParallel(make_model())
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.SGD, lr=0.1, momentum=0.9
    )
    train(model, optimizer, rank)
    assert_same_on_all_ranks(model.module.state_dict(), size)
    assert_like_alone(model.module.state_dict(), size)


def check_dtensor(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (size,))
    whole = numbers((2 * size, 3 * size), key=("dtensor",))
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    assert_same_bits(rows.to_local(), whole[2 * rank : 2 * rank + 2], "sharded by rows")
    columns = rows.redistribute(mesh, [Shard(1)])
    assert_same_bits(columns.to_local(), whole[:, 3 * rank : 3 * rank + 3], "by columns")
    assert_same_bits(columns.redistribute(mesh, [Replicate()]).to_local(), whole, "replicated")
    torch.testing.assert_close(rows.sum().full_tensor(), whole.sum(), **CLOSE)
    product = torch.matmul(columns, distribute_tensor(whole.t().contiguous(), mesh, [Shard(0)]))
    torch.testing.assert_close(product.full_tensor(), whole @ whole.t(), **CLOSE)


def check_two_dimensional_mesh(rank: int, size: int) -> None:
    """FSDP within pairs of ranks and replicas across them: groups of both kinds at once."""
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("replicate", "shard"))
    model = make_model()
    fully_shard(model, mesh=mesh)
    train(model, make_optimizer(model), rank)
    whole = {name: value.full_tensor() for name, value in model.state_dict().items()}
    assert_like_alone(whole, size)


CHECKS: list[tuple[Callable[[int, int], None], int]] = [
    (check_ddp, 3),
    (check_ddp_uneven, 2),
    (check_ddp_hook, 2),
    (check_fsdp2, 3),
    (check_zero, 2),
    (check_dtensor, 3),
    (check_two_dimensional_mesh, 4),
]


@pytest.mark.parametrize(
    ("check", "size"),
    CHECKS,
    ids=[check.__name__.removeprefix("check_") for check, _ in CHECKS],
)
def test_wrapper(launch: Launcher, check: Callable[[int, int], None], size: int) -> None:
    launch(check, size)
