"""Collectives of Python objects, which torch builds from those of tensors."""

from typing import Any

import pytest
import torch.distributed as dist

from harness.launch import Launcher


def thing(rank: int) -> dict[str, Any]:
    """An object whose pickle differs in size by rank; rank 2's goes beyond what travels inline."""
    return {"rank": rank, "payload": "x" * (10 if rank != 2 else 10_000), "list": [rank] * rank}


def check_all_gather(rank: int, size: int) -> None:
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, thing(rank))
    assert gathered == [thing(peer) for peer in range(size)]


def check_broadcast(rank: int, size: int) -> None:
    for root in range(size):
        objects = [thing(root), "text", None] if rank == root else [None] * 3
        dist.broadcast_object_list(objects, src=root)
        assert objects == [thing(root), "text", None]


def check_gather(rank: int, size: int) -> None:
    gathered: list[Any] | None = [None] * size if rank == 1 else None
    dist.gather_object(thing(rank), gathered, dst=1)
    if rank == 1:
        assert gathered == [thing(peer) for peer in range(size)]


def check_scatter(rank: int, size: int) -> None:
    received: list[Any] = [None]
    things = [thing(peer) for peer in range(size)] if rank == 0 else None
    dist.scatter_object_list(received, things, src=0)
    assert received == [thing(rank)]


def check_send(rank: int, size: int) -> None:
    if rank == 0:
        dist.send_object_list([thing(2), "text"], dst=1)
    else:
        received: list[Any] = [None, None]
        assert dist.recv_object_list(received, src=0) == 0
        assert received == [thing(2), "text"]


@pytest.mark.parametrize("size", [1, 3, 5])
def test_all_gather(launch: Launcher, size: int) -> None:
    launch(check_all_gather, size)


@pytest.mark.parametrize("size", [1, 3])
def test_broadcast(launch: Launcher, size: int) -> None:
    launch(check_broadcast, size)


def test_gather(launch: Launcher) -> None:
    launch(check_gather, 4)


def test_scatter(launch: Launcher) -> None:
    launch(check_scatter, 4)


def test_send(launch: Launcher) -> None:
    launch(check_send, 2)
