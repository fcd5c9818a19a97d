"""CUDA tensors through the freescale backend: what arrives, and in which order of streams."""

import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import freescale_pg as fs
from harness.data import arbitrary, assert_same_bits, poisoned
from harness.rank import open_store
from ranks import Ranks
from stand_in import Gate, set_capturing


def pieces(rank: int, world_size: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """What a rank sends to each: ragged, with nothing to one of them."""
    return [
        arbitrary(3 * (rank + 2 * peer) % 11 * 100, key=(rank, peer), dtype=dtype)
        for peer in range(world_size)
    ]


def exchange_ragged(rank: int, world_size: int, dtype: torch.dtype) -> None:
    sent = pieces(rank, world_size, dtype)
    expected = [pieces(peer, world_size, dtype)[rank] for peer in range(world_size)]
    source = torch.cat(sent).cuda()
    target = poisoned(sum(map(len, expected)), dtype=dtype).cuda()
    dist.all_to_all_single(target, source, list(map(len, expected)), list(map(len, sent)))
    assert_same_bits(target.cpu(), torch.cat(expected), "all_to_all_single")

    outputs = [poisoned(len(one), dtype=dtype).cuda() for one in expected]
    dist.all_to_all(outputs, [one.cuda() for one in sent])
    for output, one in zip(outputs, expected, strict=True):
        assert_same_bits(output.cpu(), one, "all_to_all")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
def test_all_to_all(run_ranks: Ranks, submission: dict[str, str], dtype: torch.dtype) -> None:
    run_ranks(3, exchange_ragged, dtype, environment=submission)


def gather_all(rank: int, world_size: int) -> None:
    everything = [arbitrary(1000, key=(peer,)) for peer in range(world_size)]
    mine = everything[rank].cuda()
    target = poisoned(1000 * world_size).cuda()
    dist.all_gather_into_tensor(target, mine)
    assert_same_bits(target.cpu(), torch.cat(everything), "all_gather_into_tensor")
    outputs = [poisoned(1000).cuda() for _ in range(world_size)]
    dist.all_gather(outputs, mine)
    for output, one in zip(outputs, everything, strict=True):
        assert_same_bits(output.cpu(), one, "all_gather")


def test_all_gather(run_ranks: Ranks, submission: dict[str, str]) -> None:
    run_ranks(3, gather_all, environment=submission)


def use_roots(rank: int, world_size: int) -> None:
    everything = [arbitrary(500, key=(peer,)) for peer in range(world_size)]
    tensor = (everything[1] if rank == 1 else poisoned(500)).cuda()
    dist.broadcast(tensor, src=1)
    assert_same_bits(tensor.cpu(), everything[1], "broadcast")

    output = poisoned(500).cuda()
    dist.scatter(output, [one.cuda() for one in everything] if rank == 0 else None, src=0)
    assert_same_bits(output.cpu(), everything[rank], "scatter")

    outputs = [poisoned(500).cuda() for _ in range(world_size)] if rank == 2 else None
    dist.gather(everything[rank].cuda(), outputs, dst=2)
    for one, expected in zip(outputs or [], everything, strict=False):
        assert_same_bits(one.cpu(), expected, "gather")
    dist.barrier()


def test_collectives_with_a_root(run_ranks: Ranks, submission: dict[str, str]) -> None:
    run_ranks(3, use_roots, environment=submission)


def send_and_receive(rank: int, world_size: int) -> None:
    contents = arbitrary(2000, key=("p2p",))
    tensor = (contents if rank == 0 else poisoned(2000)).cuda()
    if rank == 0:
        dist.send(tensor, dst=1)
        return
    with pytest.raises(ValueError, match="any source"):
        dist.recv(tensor)
    dist.recv(tensor, src=0)
    assert_same_bits(tensor.cpu(), contents, "recv")


def test_point_to_point(run_ranks: Ranks, submission: dict[str, str]) -> None:
    run_ranks(2, send_and_receive, environment=submission)


def use_strided(rank: int, world_size: int) -> None:
    everything = [arbitrary(64, key=(peer,)) for peer in range(world_size)]
    # Every second element: neither end is flat.
    source = torch.stack([everything[rank], poisoned(64)], dim=1).cuda()[:, 0]
    target = poisoned(2 * 64 * world_size).cuda()[::2]
    try:
        dist.all_gather_into_tensor(target, source)
    except RuntimeError as error:
        # Gathering every second element takes a kernel, of which the stand-in has none.
        assert "kernel" in str(error)


def test_strided_tensors_are_flattened_by_kernels(run_ranks: Ranks) -> None:
    run_ranks(2, use_strided)


def stay_in_order(rank: int, world_size: int, late: int) -> None:
    """The stream of one rank is held back: no host waits for it, and nothing moves before."""
    sent = pieces(rank, world_size, torch.float32)
    expected = torch.cat([pieces(peer, world_size, torch.float32)[rank] for peer in range(2)])
    host_source = torch.cat(sent).pin_memory()
    source = poisoned(len(host_source)).cuda()
    target = poisoned(len(expected)).cuda()
    result = poisoned(len(expected)).pin_memory()
    splits = [len(pieces(peer, world_size, torch.float32)[rank]) for peer in range(2)]
    torch.cuda.synchronize()
    gate = Gate() if rank == late else None
    source.copy_(host_source, non_blocking=True)
    work = dist.all_to_all_single(target, source, splits, list(map(len, sent)), async_op=True)
    work.wait()
    result.copy_(target, non_blocking=True)
    dist.barrier()  # both hosts have come here, and stay until both have looked
    assert not work.is_completed()
    assert_same_bits(result, poisoned(len(expected)), "nothing has moved")
    dist.barrier()
    if gate is not None:
        gate.open()
    torch.cuda.synchronize()
    assert_same_bits(result, expected, "in the order of the stream")


@pytest.mark.parametrize("late", [0, 1])
def test_exchanges_are_in_stream_order(
    run_ranks: Ranks, submission: dict[str, str], late: int
) -> None:
    run_ranks(2, stay_in_order, late, environment=submission)


def wait_on_side_stream(rank: int, world_size: int) -> None:
    contents = [arbitrary(5000, key=(peer,)) for peer in range(world_size)]
    side = torch.cuda.Stream()
    source, target = contents[rank].cuda(), poisoned(5000 * world_size).cuda()
    result = poisoned(5000 * world_size).pin_memory()
    torch.cuda.synchronize()
    gate = Gate()
    work = dist.all_gather_into_tensor(target, source, async_op=True)
    with torch.cuda.stream(side):
        work.wait()
        result.copy_(target, non_blocking=True)
    assert not side.query()
    gate.open()
    side.synchronize()
    assert_same_bits(result, torch.cat(contents), "on the side stream")
    torch.cuda.synchronize()


def test_the_stream_that_waits_is_the_current_one(
    run_ranks: Ranks, submission: dict[str, str]
) -> None:
    run_ranks(2, wait_on_side_stream, environment=submission)


def drop_tensors_early(rank: int, world_size: int) -> None:
    """Memory that the program lets go of is not given away while copies touch it."""
    contents = [arbitrary(5000, key=(peer,)) for peer in range(world_size)]
    result = poisoned(5000 * world_size).pin_memory()
    source, target = contents[rank].cuda(), poisoned(5000 * world_size).cuda()
    torch.cuda.synchronize()
    with Gate():
        work = dist.all_gather_into_tensor(target, source, async_op=True)
        work.wait()
        result.copy_(target, non_blocking=True)
        address = source.data_ptr()
        del source
        other = torch.empty(5000, device="cuda")
        assert other.data_ptr() != address
    torch.cuda.synchronize()
    assert_same_bits(result, torch.cat(contents), "kept")


def test_memory_is_kept_until_copies_are_over(run_ranks: Ranks, submission: dict[str, str]) -> None:
    run_ranks(2, drop_tensors_early, environment=submission)


def use_futures(rank: int, world_size: int) -> None:
    contents = [arbitrary(100, key=(peer,)) for peer in range(world_size)]
    target = poisoned(100 * world_size).cuda()
    work = dist.all_gather_into_tensor(target, contents[rank].cuda(), async_op=True)
    values = []
    chained = work.get_future().then(lambda future: values.append(future.value()[0]))
    chained.wait()
    assert_same_bits(values[0].cpu(), torch.cat(contents), "future")


def test_futures(run_ranks: Ranks, submission: dict[str, str]) -> None:
    run_ranks(2, use_futures, environment=submission)


def use_groups(rank: int, world_size: int) -> None:
    """Two groups on two streams, called in opposite order."""
    groups = [
        dist.new_group(backend="freescale", pg_options=fs.Options(priority=priority))
        for priority in (fs.Priority.URGENT, fs.Priority.BACKGROUND)
    ]
    streams = [torch.cuda.Stream() for _ in groups]
    contents = [[arbitrary(3000, key=(peer, i)) for peer in range(world_size)] for i in range(2)]
    sources = [one[rank].cuda() for one in contents]
    targets = [poisoned(3000 * world_size).cuda() for _ in groups]
    torch.cuda.synchronize()
    order = [0, 1] if rank == 0 else [1, 0]
    works = {}
    for i in order:
        with torch.cuda.stream(streams[i]):
            works[i] = dist.all_gather_into_tensor(
                targets[i], sources[i], group=groups[i], async_op=True
            )
    for i in order:
        with torch.cuda.stream(streams[i]):
            works[i].wait()
    torch.cuda.synchronize()
    for i in range(2):
        assert_same_bits(targets[i].cpu(), torch.cat(contents[i]), f"group {i}")
    for group in groups:
        dist.destroy_process_group(group)


def test_groups_in_opposite_order(run_ranks: Ranks, submission: dict[str, str]) -> None:
    run_ranks(2, use_groups, environment=submission)


def finish(work: dist.Work) -> None:
    """Waits on the host: a stream is ordered before errors are known."""
    work.wait(timedelta(seconds=30))


def call_wrongly(rank: int, world_size: int) -> None:
    on_host, on_device = torch.ones(10), torch.ones(10).cuda()
    with pytest.raises(ValueError, match="one tensor is on device cpu and another one on cuda:"):
        dist.all_gather_into_tensor(torch.ones(20).cuda(), on_host)
    with pytest.raises(dist.DistBackendError, match=r"CUDA memory.*memory of the host|host.*CUDA"):
        if rank == 0:
            finish(dist.all_to_all_single(torch.ones(10).cuda(), on_device, async_op=True))
        else:
            finish(dist.all_to_all_single(torch.ones(10), on_host, async_op=True))
    with pytest.raises(dist.DistBackendError, match=r"20 bytes.*24 bytes|24 bytes.*20 bytes"):
        tensor = torch.ones(10 if rank == 0 else 12).cuda()
        finish(dist.all_to_all_single(tensor.clone(), tensor, async_op=True))
    # The group goes on.
    target = torch.zeros(20).cuda()
    dist.all_gather_into_tensor(target, on_device)
    assert_same_bits(target.cpu(), torch.ones(20), "after the errors")


def test_wrong_calls(run_ranks: Ranks, submission: dict[str, str]) -> None:
    run_ranks(2, call_wrongly, environment=submission)


def capture(rank: int, world_size: int) -> None:
    source, target = torch.ones(10).cuda(), torch.zeros(20).cuda()
    stream = torch.cuda.Stream()
    set_capturing(stream, True)
    with torch.cuda.stream(stream), pytest.raises(ValueError, match="graph is being captured"):
        dist.all_gather_into_tensor(target, source)
    set_capturing(stream, False)
    dist.all_gather_into_tensor(target, source)
    assert_same_bits(target.cpu(), torch.ones(20), "after the refusal")


def test_capture_is_refused(run_ranks: Ranks) -> None:
    run_ranks(2, capture)


def use_two_devices(rank: int, world_size: int) -> None:
    dist.all_gather_into_tensor(torch.zeros(20).cuda(), torch.ones(10).cuda())
    other = torch.device("cuda", 3 - torch.cuda.current_device())
    with pytest.raises(ValueError, match="one process moves those of one device"):
        dist.all_gather_into_tensor(torch.zeros(20).to(other), torch.ones(10).to(other))


def test_one_process_moves_tensors_of_one_device(run_ranks: Ranks) -> None:
    run_ranks(2, use_two_devices, devices=[0, 0], environment={"FAKE_CUDA_DEVICES": "4"})


def run_into_timeout(rank: int, world_size: int) -> None:
    """Rank 1 does not call; the stream of rank 0 goes on with an error."""
    store = open_store("timeout")
    if rank == 1:
        store.wait(["over"])
        return
    target = poisoned(20).cuda()
    work = dist.all_gather_into_tensor(target, torch.ones(10).cuda(), async_op=True)
    with pytest.raises(dist.DistBackendError, match=r"Timed out.*rank 1"):
        finish(work)
    torch.cuda.synchronize()
    store.set("over", "")


def test_a_timeout_frees_the_streams(run_ranks: Ranks, submission: dict[str, str]) -> None:
    run_ranks(2, run_into_timeout, timeout=3.0, environment=submission)


def leave_at_once(rank: int, world_size: int) -> None:
    """The group is destroyed while a stream still waits for a call: the call takes place."""
    contents = arbitrary(2000, key=("leave",))
    tensor = (contents if rank == 0 else poisoned(2000)).cuda()
    result = poisoned(2000).pin_memory()
    gate = Gate() if rank == 1 else None
    dist.broadcast(tensor, src=0)
    result.copy_(tensor, non_blocking=True)
    if gate is not None:
        threading.Timer(0.2, gate.open).start()
    dist.destroy_process_group()
    torch.cuda.synchronize()
    assert_same_bits(result, contents, "after the group was destroyed")


def test_destroying_a_group_waits_for_its_streams(
    run_ranks: Ranks, submission: dict[str, str]
) -> None:
    run_ranks(2, leave_at_once, environment=submission)
