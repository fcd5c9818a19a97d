"""Collectives inside torch.compile(fullgraph=True), forward and backward."""

import pytest
import torch
import torch._inductor
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives

import freescale_pg as fs
from harness.data import assert_same_bits
from harness.launch import Launcher

# Traces and partitions as the default does, but calls ATen instead of compiling C++ for minutes.
FAST = "aot_eager"


def check_own_operators(rank: int, size: int, compiler: str) -> None:
    group = dist.group.WORLD

    @torch.compile(fullgraph=True, backend=compiler)
    def step(rows: torch.Tensor) -> torch.Tensor:
        sent = fs.functional.all_to_all_single(rows * 2, group=group, priority=fs.Priority.HIGH)
        return fs.functional.all_gather_single(sent + 1, priority=fs.Priority.LOW)

    rows = torch.full((size, 2), float(rank)).requires_grad_()
    gathered = step(rows)
    received = torch.arange(float(size)).unsqueeze(1).expand(size, 2) * 2 + 1
    assert_same_bits(gathered.detach(), received.repeat(size, 1), "forward")
    (gathered * (rank + 1)).sum().backward()
    total = size * (size + 1) / 2
    assert rows.grad is not None
    assert_same_bits(rows.grad, torch.full((size, 2), 2 * total), "gradient")


def check_default_compiler(rank: int, size: int) -> None:
    torch._inductor.config.compile_threads = 1  # No pool of compilers for one kernel.
    check_own_operators(rank, size, "inductor")


def check_splits_known_at_run_time(rank: int, size: int) -> None:
    """Ragged splits that come out of a tensor, as in a sharded embedding."""

    @torch.compile(fullgraph=True, backend=FAST)
    def step(rows: torch.Tensor, arriving: torch.Tensor, leaving: torch.Tensor) -> torch.Tensor:
        received = fs.functional.all_to_all_single(
            rows, arriving.tolist(), leaving.tolist(), priority=fs.Priority.URGENT
        )
        return received * 3

    for shift in range(3):
        leaving = torch.tensor([(rank + peer + shift) % 3 for peer in range(size)])
        arriving = torch.tensor([(peer + rank + shift) % 3 for peer in range(size)])
        rows = torch.full((int(leaving.sum()), 2), float(rank)).requires_grad_()
        received = step(rows, arriving, leaving)
        expected = torch.arange(float(size)).repeat_interleave(arriving)
        assert_same_bits(received.detach(), expected.unsqueeze(1).expand(-1, 2) * 3, shift)
        received.sum().backward()
        assert rows.grad is not None
        assert_same_bits(rows.grad, torch.full_like(rows, 3.0).detach(), f"gradient {shift}")


def check_priority(rank: int, size: int) -> None:
    @torch.compile(fullgraph=True, backend=FAST)
    def step(rows: torch.Tensor) -> torch.Tensor:
        return fs.functional.all_to_all_single(rows, priority=fs.Priority.URGENT) * 2

    fs.reset_stats()
    step(torch.ones(size, requires_grad=True)).sum().backward()
    calls = {(row.op, row.priority): row.calls for row in fs.stats().ops}
    assert calls == {("all_to_all_single", "URGENT"): 2}


def check_group_as_argument(rank: int, size: int) -> None:
    @torch.compile(fullgraph=True, backend=FAST)
    def step(rows: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        return fs.functional.all_to_all_single(rows, group=group) + 1

    received = step(torch.full((size,), float(rank)), dist.group.WORLD)
    assert_same_bits(received, torch.arange(float(size)) + 1, "group as an argument")


def check_torch_functional(rank: int, size: int) -> None:
    """torch's own functional collectives on our group."""

    @torch.compile(fullgraph=True, backend=FAST)
    def step(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shares = [1] * size
        received = collectives.all_to_all_single_autograd(
            rows * 2, shares, shares, dist.group.WORLD
        )
        return received * 3, collectives.all_reduce(rows, "sum", dist.group.WORLD)

    rows = torch.full((size,), float(rank)).requires_grad_()
    received, total = step(rows)
    assert_same_bits(received.detach(), torch.arange(float(size)) * 6, "exchange")
    assert_same_bits(total.detach(), torch.full((size,), size * (size - 1) / 2), "all_reduce")
    received.sum().backward()
    assert rows.grad is not None
    assert_same_bits(rows.grad, torch.full((size,), 6.0), "gradient")


def check_in_place_calls(rank: int, size: int) -> None:
    @torch.compile(fullgraph=True, backend=FAST)
    def step(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output = torch.empty_like(rows)
        dist.all_to_all_single(output, rows * 2)
        total = output.clone()
        dist.all_reduce(total)
        return output + 1, total

    received, total = step(torch.full((size,), float(rank)))
    assert_same_bits(received, torch.arange(float(size)) * 2 + 1, "all_to_all_single")
    assert_same_bits(total, torch.arange(float(size)) * 2 * size, "all_reduce")


CHECKS = [
    check_splits_known_at_run_time,
    check_group_as_argument,
    check_torch_functional,
    check_in_place_calls,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_full_graph(launch: Launcher, check: object) -> None:
    assert callable(check)
    # Compiling leaves threads and files of its own.
    launch(check, 2, checks_footprint=False)


def test_own_operators(launch: Launcher) -> None:
    launch(check_own_operators, 2, FAST, checks_footprint=False)


def test_default_compiler(launch: Launcher) -> None:
    launch(check_default_compiler, 2, checks_footprint=False)


@pytest.mark.freescale_only
def test_priority_survives_in_forward_and_backward(launch: Launcher) -> None:
    launch(check_priority, 2, checks_footprint=False)
