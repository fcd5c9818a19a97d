"""Mistakes of one rank: every rank concerned learns of it, and other groups go on."""

import re
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from harness.launch import Launcher

pytestmark = pytest.mark.freescale_only

Error = (RuntimeError, ValueError)
Call = Callable[[int, int, dist.ProcessGroup], object]

CULPRIT = 1


def message_of(call: Callable[[], object]) -> str:
    """The text of the error that the call must raise."""
    try:
        call()
    except Error as error:
        return str(error)
    raise AssertionError("no error")


def check_mistake(
    rank: int, size: int, call: Call, words: list[str], refused_by_torch: bool
) -> None:
    group = dist.new_group()
    bystander = dist.new_group()
    if rank == CULPRIT or not refused_by_torch:
        message = message_of(lambda: call(rank, size, group))
        for word in words if refused_by_torch else [*words, f"rank {CULPRIT}"]:
            assert re.search(word, message), f"no {word!r} in: {message}"
    # The next collective of another group works, before and after the group is gone.
    for other in (bystander, None):
        total = torch.ones(3)
        dist.all_reduce(total, group=other)
        assert torch.equal(total, torch.full((3,), float(size)))


# Each is called by all ranks; CULPRIT makes the mistake.


def input_splits_sum(rank: int, size: int, group: dist.ProcessGroup) -> None:
    splits = [4] + [1] * (size - 1) if rank == CULPRIT else [1] * size
    dist.all_to_all_single(torch.empty(size), torch.ones(size), [1] * size, splits, group=group)


def output_splits_sum(rank: int, size: int, group: dist.ProcessGroup) -> None:
    splits = [4] + [1] * (size - 1) if rank == CULPRIT else [1] * size
    dist.all_to_all_single(torch.empty(size), torch.ones(size), splits, [1] * size, group=group)


def split_count(rank: int, size: int, group: dist.ProcessGroup) -> None:
    splits = [size] if rank == CULPRIT else [1] * size
    dist.all_to_all_single(torch.empty(size), torch.ones(size), [1] * size, splits, group=group)


def negative_split(rank: int, size: int, group: dist.ProcessGroup) -> None:
    splits = [-1, size + 1] + [0] * (size - 2) if rank == CULPRIT else [1] * size
    dist.all_to_all_single(torch.empty(size), torch.ones(size), [1] * size, splits, group=group)


def indivisible_rows(rank: int, size: int, group: dist.ProcessGroup) -> None:
    rows = size + 1 if rank == CULPRIT else size
    dist.all_to_all_single(torch.empty(size), torch.ones(rows), group=group)


def dtypes_of_one_call(rank: int, size: int, group: dist.ProcessGroup) -> None:
    """torch checks this itself, but not for callers of the group's own methods."""
    dtype = torch.int32 if rank == CULPRIT else torch.float32
    group.alltoall_base(torch.empty(size, dtype=dtype), torch.ones(size), [], []).wait()


def gather_size(rank: int, size: int, group: dist.ProcessGroup) -> None:
    output = torch.empty(3 * size + (1 if rank == CULPRIT else 0))
    dist.all_gather_into_tensor(output, torch.ones(3), group=group)


def own_piece(rank: int, size: int, group: dist.ProcessGroup) -> None:
    outputs = [torch.empty(3) for _ in range(size)]
    dist.all_gather(outputs, torch.ones(4 if rank == CULPRIT else 3), group=group)


def too_few_outputs(rank: int, size: int, group: dist.ProcessGroup) -> None:
    outputs = [torch.empty(3) for _ in range(size - 1 if rank == CULPRIT else size)]
    dist.all_gather(outputs, torch.ones(3), group=group)


def outputs_overlap(rank: int, size: int, group: dist.ProcessGroup) -> None:
    base = torch.empty(3 * size)
    outputs = [base[2 * peer : 2 * peer + 3] for peer in range(size)]
    if rank != CULPRIT:
        outputs = list(base.split(3))
    dist.all_gather(outputs, torch.ones(3), group=group)


def output_overlaps_input(rank: int, size: int, group: dist.ProcessGroup) -> None:
    base = torch.empty(size + 1)
    given = base[1:] if rank == CULPRIT else torch.ones(size)
    dist.all_to_all_single(base[:-1], given, group=group)


def sparse_input(rank: int, size: int, group: dist.ProcessGroup) -> None:
    given = torch.ones(size)
    dist.all_to_all_single(
        torch.empty(size), given.to_sparse() if rank == CULPRIT else given, group=group
    )


def scatter_count(rank: int, size: int, group: dist.ProcessGroup) -> None:
    pieces = [torch.ones(2) for _ in range(size + 1)] if rank == CULPRIT else None
    dist.scatter(torch.empty(2), pieces, src=CULPRIT, group=group)


def reduce_scatter_size(rank: int, size: int, group: dist.ProcessGroup) -> None:
    dist.reduce_scatter_tensor(
        torch.empty(2), torch.ones(2 * size + (1 if rank == CULPRIT else 0)), group=group
    )


def scalar_input(rank: int, size: int, group: dist.ProcessGroup) -> None:
    given = torch.tensor(1.0) if rank == CULPRIT else torch.ones(size)
    dist.all_to_all_single(torch.empty(size), given, group=group)


def dtype_of_twice_the_length(rank: int, size: int, group: dist.ProcessGroup) -> None:
    """Half as many elements of twice the bytes."""
    output = torch.empty(size, dtype=torch.int64)
    given = torch.ones(2, dtype=torch.int32) if rank == CULPRIT else output[:1].clone()
    group._allgather_base(output, given).wait()


def no_tensors_to_exchange(rank: int, size: int, group: dist.ProcessGroup) -> None:
    count = 0 if rank == CULPRIT else size
    given = [torch.ones(1) for _ in range(count)]
    # torch's dispatcher refuses empty lists before it calls a backend.
    backend = group._get_backend(torch.device("cpu"))
    backend.alltoall([torch.empty(1) for _ in range(count)], given).wait()


def no_outputs_to_gather(rank: int, size: int, group: dist.ProcessGroup) -> None:
    outputs = [] if rank == CULPRIT else [torch.empty(1) for _ in range(size)]
    group.allgather([outputs], [torch.ones(1)]).wait()


def no_list_to_gather(rank: int, size: int, group: dist.ProcessGroup) -> None:
    outputs = [torch.empty(1) for _ in range(size)]
    group.allgather([] if rank == CULPRIT else [outputs], [torch.ones(1)]).wait()


MISTAKES: list[tuple[Call, list[str]]] = [
    (input_splits_sum, ["all_to_all_single", "input", "6", "3"]),
    (output_splits_sum, ["all_to_all_single", "output", "6", "3"]),
    (split_count, ["all_to_all_single", "1 input splits", "3 ranks"]),
    (negative_split, ["all_to_all_single", "-1"]),
    (indivisible_rows, ["all_to_all_single", "4 rows", "3 ranks"]),
    (dtypes_of_one_call, ["all_to_all_single", "int32", "float32"]),
    (gather_size, ["all_gather_into_tensor", "10", "9"]),
    (own_piece, ["all_gather", "3", "4"]),
    (too_few_outputs, ["all_gather", "2", "3"]),
    (outputs_overlap, ["all_gather", "overlap"]),
    (output_overlaps_input, ["all_to_all_single", "overlap"]),
    (sparse_input, ["sparse|Sparse"]),
    (scatter_count, ["scatter", "4", "3"]),
    (scalar_input, ["all_to_all_single", "scalar"]),
    (dtype_of_twice_the_length, ["all_gather_into_tensor", "int64", "int32"]),
    (no_tensors_to_exchange, ["all_to_all", "0", "3"]),
    (no_outputs_to_gather, ["all_gather", "0", "3"]),
    (no_list_to_gather, ["all_gather", "0", "1"]),
    (reduce_scatter_size, ["reduce_scatter_tensor", "7", "6"]),
]
# torch refuses these on the rank that makes them, before a backend hears of the call: the others
# cannot be told.
REFUSED_BY_TORCH = {sparse_input}


@pytest.mark.parametrize(("call", "words"), MISTAKES, ids=[call.__name__ for call, _ in MISTAKES])
def test_mistake_of_one_rank(launch: Launcher, call: Call, words: list[str]) -> None:
    launch(check_mistake, 3, call, words, call in REFUSED_BY_TORCH, timeout=20)


def check_op_that_does_not_fit(rank: int, size: int) -> None:
    message = message_of(lambda: dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND))
    assert re.search("BAND|bitwise", message), message
    assert "all_reduce" in message, message
    assert "float32" in message or "Float" in message, message
    dist.barrier(dist.new_group())


def check_wrong_device(rank: int, size: int) -> None:
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    message = message_of(lambda: backend.allreduce([torch.ones(3, device="meta")]))
    for word in (f"rank {rank}", "all_reduce", "device meta", "devices cpu and cuda"):
        assert word in message, message
    dist.barrier(dist.new_group())


def check_point_to_point(rank: int, size: int) -> None:
    message_of(lambda: dist.send(torch.ones(1), rank))
    if rank == 0:
        message = message_of(lambda: dist.send(torch.ones(1), 1, tag=-1))
        assert "-1" in message
        dist.send(torch.ones(1), 1)
    else:
        dist.recv(torch.empty(1), 0)


def check_destroyed_group(rank: int, size: int) -> None:
    group = dist.new_group()
    backend = group._get_backend(torch.device("cpu"))
    dist.destroy_process_group(group)
    message = message_of(lambda: backend.allreduce([torch.ones(1)]))
    for word in (f"rank {rank}", "all_reduce", "cannot be used any more"):
        assert word in message, message
    dist.barrier()


def check_group_goes_on_after_mistake(rank: int, size: int) -> None:
    """A mistake costs one collective, not the group."""
    group = dist.group.WORLD
    message_of(lambda: gather_size(rank, size, group))
    for _ in range(3):
        total = torch.ones(1000)
        dist.all_reduce(total)
        assert torch.equal(total, torch.full((1000,), float(size)))


def test_reduction_that_the_dtype_does_not_have(launch: Launcher) -> None:
    launch(check_op_that_does_not_fit, 2)


def test_wrong_device(launch: Launcher) -> None:
    launch(check_wrong_device, 2)


def test_wrong_peer_and_tag(launch: Launcher) -> None:
    launch(check_point_to_point, 2)


def test_destroyed_group(launch: Launcher) -> None:
    launch(check_destroyed_group, 2)


def test_group_goes_on_after_a_mistake(launch: Launcher) -> None:
    launch(check_group_goes_on_after_mistake, 3)
