"""Where the kernel forbids to read another process's memory: containers, ptrace rules, seccomp."""

import ctypes
import errno
import os
import struct

import pytest
import torch
import torch.distributed as dist

from harness.data import arbitrary, assert_same_bits, poisoned
from harness.launch import Launcher
from harness.rank import open_store
from harness.seccomp import forbid_direct_reads

pytestmark = pytest.mark.freescale_only

# Floats to each rank: inline, chunks, and so many that reading directly would be tried.
COUNTS = [10, 50_000, 300_000]


def read_own_memory() -> int:
    """Tries process_vm_readv() on this process; returns errno, or 0."""
    libc = ctypes.CDLL(None, use_errno=True)
    source, target = ctypes.create_string_buffer(b"x", 1), ctypes.create_string_buffer(1)
    local = struct.pack("NN", ctypes.addressof(target), 1)
    remote = struct.pack("NN", ctypes.addressof(source), 1)
    done = libc.process_vm_readv(os.getpid(), local, 1, remote, 1, 0)
    return 0 if done == 1 else ctypes.get_errno()


def exchange(count: int, size: int, turn: int) -> None:
    rank = dist.get_rank()
    output = poisoned(count * size)
    given = [arbitrary(count, key=(turn, rank, peer)) for peer in range(size)]
    dist.all_to_all_single(output, torch.cat(given))
    expected = [arbitrary(count, key=(turn, peer, rank)) for peer in range(size)]
    assert_same_bits(output, torch.cat(expected), (count, turn))


def check_forbidden(rank: int, size: int, code: int, forbidden: list[int], late: bool) -> None:
    if rank in forbidden and not late:
        forbid_direct_reads(code)
        assert read_own_memory() == code
    dist.init_process_group("freescale", store=open_store("w"), rank=rank, world_size=size)
    if late:
        exchange(COUNTS[-1], size, -1)
    if rank in forbidden and late:
        forbid_direct_reads(code)
        assert read_own_memory() == code
    for turn in range(9):
        exchange(COUNTS[turn % len(COUNTS)], size, turn)


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSYS])
@pytest.mark.parametrize("forbidden", [[0, 1, 2], [1]], ids=["everywhere", "on one rank"])
def test_forbidden_from_the_start(launch: Launcher, code: int, forbidden: list[int]) -> None:
    launch(check_forbidden, 3, code, forbidden, False, init=False)


@pytest.mark.parametrize("forbidden", [[0, 1, 2], [1]], ids=["everywhere", "on one rank"])
def test_forbidden_later(launch: Launcher, forbidden: list[int]) -> None:
    """After links have been made and proven."""
    launch(check_forbidden, 3, errno.EPERM, forbidden, True, init=False)
