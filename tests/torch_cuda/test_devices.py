"""Several devices in one process, and processes with a device each."""

import pickle

import pytest
import torch
from torch.multiprocessing.reductions import reduce_tensor

from harness.data import arbitrary, assert_same_bits, poisoned
from harness.rank import open_store
from ranks import Ranks
from stand_in import Gate


def copy_across(rank: int, world_size: int, peers: bool) -> None:
    assert torch.cuda.device_count() == 3
    assert torch.cuda.can_device_access_peer(0, 1) == peers
    contents = arbitrary(1000, key=("across",))
    first = contents.to("cuda:1")
    assert first.get_device() == 1
    second = first.to("cuda:2")
    assert_same_bits(second.to("cuda:0").cpu(), contents, "three devices")


@pytest.mark.parametrize("peers", [True, False])
def test_copies_go_from_device_to_device(run_ranks: Ranks, peers: bool) -> None:
    environment = {"FAKE_CUDA_DEVICES": "3", "FAKE_CUDA_P2P": "all" if peers else "none"}
    run_ranks(1, copy_across, peers, init=False, environment=environment)


def hold_one(rank: int, world_size: int) -> None:
    """Streams of devices have nothing to do with each other."""
    contents = arbitrary(1000, key=("other",))
    with Gate(torch.cuda.current_stream(0)):
        with torch.cuda.device(1):
            assert_same_bits(contents.cuda().cpu(), contents, "on the other device")
            torch.cuda.synchronize()
        assert not torch.cuda.current_stream(0).query()


def test_a_device_does_not_wait_for_another(run_ranks: Ranks) -> None:
    run_ranks(1, hold_one, init=False)


def see_device(rank: int, world_size: int) -> tuple[int, int]:
    return torch.cuda.current_device(), torch.ones(1).cuda().get_device()


def test_each_rank_has_a_device(run_ranks: Ranks) -> None:
    assert run_ranks(3, see_device, init=False) == [(0, 0), (1, 1), (2, 2)]
    assert run_ranks(2, see_device, init=False, devices=[1, 1]) == [(1, 1), (1, 1)]


def export(rank: int, world_size: int) -> None:
    """Rank 1 reads a tensor of rank 0, through the handles that torch makes of it."""
    store, contents = open_store("export"), arbitrary(1000, key=("exported",))
    if rank == 0:
        source, tensor = contents.pin_memory(), poisoned(1000).cuda()
        with Gate() as gate:
            tensor.copy_(source, non_blocking=True)
            rebuild, arguments = reduce_tensor(tensor)
            store.set("tensor", pickle.dumps((rebuild, arguments)))
            store.wait(["reading"])
            gate.open()
            store.wait(["read"])
        return
    rebuild, arguments = pickle.loads(store.get("tensor"))
    with torch.cuda.device(0):
        tensor, result = rebuild(*arguments), poisoned(1000).pin_memory()
        result.copy_(tensor, non_blocking=True)
        assert not torch.cuda.current_stream().query(), "waits for the event of the other process"
        store.set("reading", "")
        torch.cuda.synchronize()
    assert_same_bits(result, contents, "written by the other process")
    del tensor
    store.set("read", "")


def test_a_tensor_is_shared_between_processes(run_ranks: Ranks) -> None:
    # torch keeps a segment of reference counts for the next tensor.
    run_ranks(2, export, init=False, checks_footprint=False)
