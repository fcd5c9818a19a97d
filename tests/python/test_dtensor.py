"""Redistribution of DTensors, eager and compiled, and compiled steps that leave nothing behind."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from freescale_pg import functional
from harness.data import assert_same_bits, numbers
from harness.launch import Launcher

pytestmark = pytest.mark.freescale_only

FAST = "aot_eager"


def check_round_trips(rank: int, size: int) -> None:
    """Rows and columns that ranks cannot share equally, and fewer rows than ranks."""
    mesh = init_device_mesh("cpu", (size,))
    for shape in ((5, 10), (3, 7), (1, 2), (2 * size, 3 * size)):
        whole = numbers(shape, key=("round trip", shape))
        replicated = distribute_tensor(whole, mesh, [Replicate()])
        rows = replicated.redistribute(mesh, [Shard(0)])
        assert_same_bits(rows.full_tensor(), whole, (shape, "rows"))
        columns = rows.redistribute(mesh, [Shard(1)])
        assert_same_bits(columns.full_tensor(), whole, (shape, "columns"))
        again = columns.redistribute(mesh, [Shard(0)])
        assert_same_bits(again.to_local(), rows.to_local(), (shape, "rows again"))
        back = again.redistribute(mesh, [Replicate()])
        assert_same_bits(back.to_local(), whole, (shape, "replicated"))


def check_compiled_redistribution(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (size,))
    whole = numbers((2 * size, 3 * size), key=("compiled",))

    def to_columns(tensor: DTensor) -> DTensor:
        return tensor.redistribute(mesh, [Shard(1)]) * 2

    results = []
    for function in (to_columns, torch.compile(to_columns, backend=FAST, fullgraph=True)):
        tensor = distribute_tensor(whole, mesh, [Shard(0)]).requires_grad_()
        output = function(tensor)
        output.to_local().sum().backward()
        assert tensor.grad is not None
        results.append((output.to_local().detach(), tensor.grad.to_local()))
    for eager, compiled in zip(*results, strict=True):
        assert eager.stride() == compiled.stride()
        assert_same_bits(compiled, eager, "compiled against eager")


def check_view_of_a_waited_collective(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (size,))

    @torch.compile(backend=FAST, fullgraph=True)
    def flat(tensor: DTensor) -> torch.Tensor:
        return tensor.redistribute(mesh, [Replicate()]).to_local().view(-1)

    whole = numbers((size, 3), key=("view",))
    gathered = flat(distribute_tensor(whole, mesh, [Shard(0)]))
    assert_same_bits(gathered, whole.view(-1), "view of what was gathered")


def check_input_used_again(rank: int, size: int) -> None:
    """The buffer of a collective's input must not be reused before it has been sent."""
    torch._inductor.config.compile_threads = 1
    shares = [1] * size

    def step(rows: torch.Tensor) -> torch.Tensor:
        doubled = rows * 2
        received = collectives.all_to_all_single(doubled, shares, shares, dist.group.WORLD)
        return received + doubled

    rows = numbers((size, 5), key=("again", rank))
    compiled = torch.compile(step, fullgraph=True, backend="inductor")
    for _ in range(3):
        torch.testing.assert_close(compiled(rows), step(rows))


class Exchange(torch.autograd.Function):
    """What libraries write by hand: an exchange with a group as an argument."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, rows: torch.Tensor, group: dist.ProcessGroup
    ) -> torch.Tensor:
        ctx.group = group  # type: ignore[attr-defined]
        output = torch.empty_like(rows)
        dist.all_to_all_single(output, rows.contiguous(), group=group)
        return output

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor
    ) -> tuple[torch.Tensor, None]:
        output = torch.empty_like(gradient)
        group = ctx.group  # type: ignore[attr-defined]
        dist.all_to_all_single(output, gradient.contiguous(), group=group)
        return output, None


def check_function_with_a_group(rank: int, size: int) -> None:
    @torch.compile(backend=FAST)
    def step(rows: torch.Tensor) -> torch.Tensor:
        received: torch.Tensor = Exchange.apply(rows * 2, dist.group.WORLD)
        return received * (rank + 1)

    rows = torch.full((size,), float(rank)).requires_grad_()
    received = step(rows)
    assert_same_bits(received.detach(), torch.arange(float(size)) * 2 * (rank + 1), "forward")
    received.sum().backward()
    assert rows.grad is not None
    assert_same_bits(rows.grad, 2 * (torch.arange(float(size)) + 1), "gradient")


def check_no_work_is_left(rank: int, size: int) -> None:
    @torch.compile(backend=FAST, fullgraph=True)
    def step(rows: torch.Tensor) -> torch.Tensor:
        received = functional.all_to_all_single(rows)
        return collectives.all_reduce(received * 2, "sum", dist.group.WORLD)

    for _ in range(100):
        step(torch.ones(size, requires_grad=True)).sum().backward()
    assert torch._C._distributed_c10d._get_work_registry_size() == 0


@pytest.mark.parametrize("size", [1, 3, 4])
def test_round_trips_of_uneven_shards(launch: Launcher, size: int) -> None:
    launch(check_round_trips, size)


wrong_in_torch_2_11 = pytest.mark.skipif(
    torch.__version__ < "2.13", reason="torch 2.11 compiles it wrongly, for gloo as well"
)
COMPILED = [
    check_compiled_redistribution,
    check_view_of_a_waited_collective,
    pytest.param(check_input_used_again, marks=wrong_in_torch_2_11),
    pytest.param(check_function_with_a_group, marks=wrong_in_torch_2_11),
    check_no_work_is_left,
]


@pytest.mark.parametrize("check", COMPILED, ids=lambda check: check.__name__.removeprefix("check_"))
def test_compiled(launch: Launcher, check: object) -> None:
    assert callable(check)
    # Compiling leaves threads and files of its own.
    launch(check, 2, checks_footprint=False)
