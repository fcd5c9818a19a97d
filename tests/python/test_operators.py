"""freescale_pg's own collectives: in place, and functional with gradients."""

import pytest
import torch
import torch.distributed as dist

import freescale_pg as fs
from freescale_pg import functional
from harness.data import assert_same_bits, numbers, poisoned
from harness.launch import Launcher

# The rows that `sender` sends to `receiver`.
COLUMNS = 3


def rows_of(sender: int, receiver: int) -> int:
    return (2 * sender + receiver) % 4


def piece(sender: int, receiver: int) -> torch.Tensor:
    return numbers((rows_of(sender, receiver), COLUMNS), key=("piece", sender, receiver))


def splits(rank: int, size: int) -> tuple[list[int], list[int]]:
    """The rows that come from, and go to, each rank."""
    return [rows_of(p, rank) for p in range(size)], [rows_of(rank, p) for p in range(size)]


def outgoing(rank: int, size: int) -> torch.Tensor:
    return torch.cat([piece(rank, peer) for peer in range(size)])


def incoming(rank: int, size: int) -> torch.Tensor:
    return torch.cat([piece(peer, rank) for peer in range(size)])


def check_in_place(rank: int, size: int) -> None:
    arriving, leaving = splits(rank, size)
    output = poisoned((sum(arriving), COLUMNS))
    assert fs.all_to_all_single(output, outgoing(rank, size), arriving, leaving) is None
    assert_same_bits(output, incoming(rank, size), "all_to_all_single")

    output = poisoned((sum(arriving), COLUMNS))
    work = fs.all_to_all_single(
        output, outgoing(rank, size), arriving, leaving, group=dist.group.WORLD, async_op=True
    )
    assert work is not None
    work.wait()
    assert_same_bits(output, incoming(rank, size), "asynchronous all_to_all_single")

    row = numbers((1, COLUMNS), key=("row", rank))
    gathered = poisoned((size, COLUMNS))
    assert fs.all_gather_into_tensor(gathered, row) is None
    expected = torch.cat([numbers((1, COLUMNS), key=("row", peer)) for peer in range(size)])
    assert_same_bits(gathered, expected, "all_gather_into_tensor")


def check_exchange_gradient(rank: int, size: int) -> None:
    arriving, leaving = splits(rank, size)
    given = outgoing(rank, size).requires_grad_()
    received = functional.all_to_all_single(given, arriving, leaving)
    assert_same_bits(received.detach(), incoming(rank, size), "forward")
    # Rank r multiplies what it received by r + 1, so gradients come back as that number.
    (received * (rank + 1)).sum().backward()
    expected = torch.cat(
        [torch.full((rows_of(rank, peer), COLUMNS), peer + 1.0) for peer in range(size)]
    )
    assert given.grad is not None
    assert_same_bits(given.grad, expected, "gradient")


def check_equal_exchange_gradient(rank: int, size: int) -> None:
    given = torch.full((size, COLUMNS), float(rank)).requires_grad_()
    received = functional.all_to_all_single(given)
    expected = torch.arange(float(size)).unsqueeze(1).expand(size, COLUMNS)
    assert_same_bits(received.detach(), expected, "forward")
    (received * (rank + 1)).sum().backward()
    assert given.grad is not None
    assert_same_bits(given.grad, expected + 1, "gradient")


def check_gather_gradient(rank: int, size: int) -> None:
    given = torch.full((2, COLUMNS), float(rank)).requires_grad_()
    gathered = functional.all_gather_single(given)
    expected = torch.arange(float(size)).repeat_interleave(2).unsqueeze(1).expand(-1, COLUMNS)
    assert_same_bits(gathered.detach(), expected, "forward")
    (gathered * (rank + 1)).sum().backward()
    total = size * (size + 1) / 2  # Every rank used every row, rank r with the weight r + 1.
    assert given.grad is not None
    assert_same_bits(given.grad, torch.full((2, COLUMNS), total), "gradient")


def check_scatter_gradient(rank: int, size: int) -> None:
    given = torch.full((2 * size, COLUMNS), rank + 1.0).requires_grad_()
    share = functional.reduce_scatter_single(given)
    total = size * (size + 1) / 2
    assert_same_bits(share.detach(), torch.full((2, COLUMNS), total), "forward")
    (share * (rank + 1)).sum().backward()
    expected = torch.arange(1.0, size + 1).repeat_interleave(2).unsqueeze(1).expand(-1, COLUMNS)
    assert given.grad is not None
    assert_same_bits(given.grad, expected, "gradient")


def check_second_order(rank: int, size: int) -> None:
    """The gradient can itself be differentiated, across the ranks."""
    given = torch.full((size,), rank + 2.0, dtype=torch.float64, requires_grad=True)
    received = functional.all_to_all_single(given)
    (first,) = torch.autograd.grad((received**3).sum(), given, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), given)
    torch.testing.assert_close(first.detach(), 3 * given.detach() ** 2)
    torch.testing.assert_close(second, 6 * given.detach())


def check_groups(rank: int, size: int) -> None:
    """A group may be given as an object, by its name, or not at all."""
    group = dist.new_group([0, 1])
    if rank < 2:
        given = torch.full((2,), float(rank))
        for chosen in (group, group.group_name):
            received = functional.all_to_all_single(given, group=chosen)
            assert_same_bits(received, torch.tensor([0.0, 1.0]), chosen)
    received = functional.all_to_all_single(torch.full((size,), float(rank)))
    assert_same_bits(received, torch.arange(float(size)), "default group")


def check_contracts(rank: int, size: int) -> None:
    """torch's own checks of a custom operator: schema, shape rule, autograd registration."""
    name = dist.group.WORLD.group_name
    arriving, leaving = splits(rank, size)
    operators = torch.ops.freescale
    given = outgoing(rank, size).requires_grad_()
    arguments = (given, arriving, leaving, name, None)
    torch.library.opcheck(operators.all_to_all_single, arguments)
    rows = torch.ones(2 * size, COLUMNS, requires_grad=True)
    torch.library.opcheck(operators.all_gather_single, (rows, name, None))
    torch.library.opcheck(operators.reduce_scatter_single, (rows, name, None))


def check_priority_in_both_directions(rank: int, size: int) -> None:
    fs.reset_stats()
    given = torch.ones(size, requires_grad=True)
    functional.all_to_all_single(given, priority=fs.Priority.URGENT).sum().backward()
    given.grad = None
    functional.all_gather_single(given, priority=fs.Priority.LOW).sum().backward()
    calls = {(row.op, row.priority): row.calls for row in fs.stats().ops}
    assert calls == {
        ("all_to_all_single", "URGENT"): 2,
        ("all_gather_into_tensor", "LOW"): 1,
        ("reduce_scatter_tensor", "LOW"): 1,
    }


def check_priority_in_place(rank: int, size: int) -> None:
    fs.reset_stats()
    output = poisoned(size)
    fs.all_to_all_single(output, torch.ones(size), priority=fs.Priority.HIGH)
    fs.all_gather_into_tensor(output, torch.ones(1), priority=fs.Priority.BACKGROUND)
    dist.all_gather_into_tensor(output, torch.ones(1))  # The override ended with the call.
    calls = {(row.op, row.priority): row.calls for row in fs.stats().ops}
    assert calls == {
        ("all_to_all_single", "HIGH"): 1,
        ("all_gather_into_tensor", "BACKGROUND"): 1,
        ("all_gather_into_tensor", "NORMAL"): 1,
    }


@pytest.mark.parametrize("size", [1, 3])
def test_in_place(launch: Launcher, size: int) -> None:
    launch(check_in_place, size)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_exchange_with_gradient(launch: Launcher, size: int) -> None:
    launch(check_exchange_gradient, size)


def test_equal_exchange_with_gradient(launch: Launcher) -> None:
    launch(check_equal_exchange_gradient, 3)


@pytest.mark.parametrize("size", [1, 3])
def test_gather_with_gradient(launch: Launcher, size: int) -> None:
    launch(check_gather_gradient, size)


@pytest.mark.parametrize("size", [1, 3])
def test_reduce_scatter_with_gradient(launch: Launcher, size: int) -> None:
    launch(check_scatter_gradient, size)


def test_second_order_gradient(launch: Launcher) -> None:
    launch(check_second_order, 2)


def test_groups_by_object_and_name(launch: Launcher) -> None:
    launch(check_groups, 3)


def test_operator_contracts(launch: Launcher) -> None:
    launch(check_contracts, 2, checks_footprint=False)


@pytest.mark.freescale_only
def test_backward_keeps_the_priority(launch: Launcher) -> None:
    launch(check_priority_in_both_directions, 2)


@pytest.mark.freescale_only
def test_priority_of_one_call(launch: Launcher) -> None:
    launch(check_priority_in_place, 2)


def test_no_group() -> None:
    with pytest.raises(ValueError, match="there is no default group"):
        functional.all_to_all_single(torch.ones(2))


def test_scalar_input() -> None:
    with pytest.raises(ValueError, match="all_gather_single: the input must have at least one"):
        functional.all_gather_single(torch.tensor(1.0), group="any")


@pytest.mark.parametrize("wrong", [3, -3])
def test_priority_out_of_range(wrong: int) -> None:
    with pytest.raises(ValueError, match=f"priority {wrong} does not exist.*URGENT=-2"):
        fs.all_to_all_single(torch.ones(2), torch.ones(2), priority=wrong)
    with pytest.raises(ValueError, match=f"priority {wrong} does not exist"):
        functional.all_gather_single(torch.ones(2), group="any", priority=wrong)
