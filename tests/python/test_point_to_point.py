"""send, recv and their asynchronous, tagged and batched forms."""

import pytest
import torch
import torch.distributed as dist

from harness.data import arbitrary, assert_same_bits, poisoned
from harness.launch import Launcher

SMALL = 5
LARGE = 300_000  # floats: far above what travels inline


def message(sender: int, receiver: int, count: int, salt: object = 0) -> torch.Tensor:
    return arbitrary(count, key=("message", sender, receiver, count, salt))


def check_ring(rank: int, size: int) -> None:
    following, previous = (rank + 1) % size, (rank - 1) % size
    for count in (0, SMALL, LARGE):
        received = poisoned(count)
        if rank == 0:
            dist.send(message(rank, following, count), following)
            assert dist.recv(received, previous) == previous
        else:
            assert dist.recv(received, previous) == previous
            dist.send(message(rank, following, count), following)
        assert_same_bits(received, message(previous, rank, count), f"{count} floats")


def check_receive_first(rank: int, size: int) -> None:
    """Both ranks post the receive before the send: it must not stand in the send's way."""
    peer = 1 - rank
    for count in (SMALL, LARGE):
        received = poisoned(count)
        receiving = dist.irecv(received, peer)
        sending = dist.isend(message(rank, peer, count), peer)
        assert receiving is not None
        assert sending is not None
        receiving.wait()
        sending.wait()
        assert_same_bits(received, message(peer, rank, count), f"{count} floats")


def check_order(rank: int, size: int) -> None:
    """Messages of one pair and tag arrive in the order of the calls, whatever their sizes."""
    counts = [LARGE, SMALL, 0, SMALL, LARGE, 1]
    if rank == 0:
        works = [dist.isend(message(0, 1, count, number), 1) for number, count in enumerate(counts)]
        for work in works:
            assert work is not None
            work.wait()
        return
    for number, count in enumerate(counts):
        received = poisoned(count)
        dist.recv(received, 0)
        assert_same_bits(received, message(0, 1, count, number), f"message {number}")


def check_tags(rank: int, size: int) -> None:
    """Receives pick messages by tag, in another order than they were sent."""
    tags = [3, 1, 2]
    for count in (SMALL, LARGE):
        if rank == 0:
            works = [dist.isend(message(0, 1, count, tag), 1, tag=tag) for tag in tags]
            for work in works:
                assert work is not None
                work.wait()
            continue
        for tag in sorted(tags):
            received = poisoned(count)
            dist.recv(received, 0, tag=tag)
            assert_same_bits(received, message(0, 1, count, tag), f"tag {tag}")


def check_any_source(rank: int, size: int) -> None:
    # A tag for each round: a rank that is quick may send its second message before another rank its
    # first.
    for tag, count in enumerate((SMALL, LARGE)):
        if rank != 0:
            dist.send(message(rank, 0, count), 0, tag=tag)
            continue
        heard = set()
        for _ in range(size - 1):
            received = poisoned(count)
            source = dist.recv(received, tag=tag)
            heard.add(source)
            assert_same_bits(received, message(source, 0, count), f"from rank {source}")
        assert heard == set(range(1, size))


def check_batch(rank: int, size: int) -> None:
    """Every rank exchanges with both neighbours in one batch, receives listed first."""
    neighbours = [(rank + 1) % size, (rank - 1) % size]
    for count in (SMALL, LARGE):
        received = [poisoned(count) for _ in neighbours]
        ops = [
            dist.P2POp(dist.irecv, received[place], peer, tag=1 - place)
            for place, peer in enumerate(neighbours)
        ]
        ops += [
            dist.P2POp(dist.isend, message(rank, peer, count, place), peer, tag=place)
            for place, peer in enumerate(neighbours)
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        for place, peer in enumerate(neighbours):
            expected = message(peer, rank, count, 1 - place)
            assert_same_bits(received[place], expected, f"from rank {peer}")


def check_in_subgroup(rank: int, size: int) -> None:
    """Ranks in calls are global ones, also where the group numbers its members otherwise."""
    group = dist.new_group([1, 2])
    if rank == 1:
        dist.send(message(1, 2, SMALL), 2, group=group)
    elif rank == 2:
        received = poisoned(SMALL)
        assert dist.recv(received, 1, group=group) == 1
        assert_same_bits(received, message(1, 2, SMALL), "global rank as source")
        dist.send(message(2, 1, SMALL), group=group, group_dst=0)
    if rank == 1:
        received = poisoned(SMALL)
        dist.recv(received, group=group, group_src=1)
        assert_same_bits(received, message(2, 1, SMALL), "group rank as source")


def check_beside_collectives(rank: int, size: int) -> None:
    """A message that waits for its receive does not get in the way of collectives."""
    sent = message(0, 1, LARGE)
    sending = dist.isend(sent, 1) if rank == 0 else None
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    assert total == size * (size + 1) / 2
    if sending is not None:
        assert not sending.is_completed(), "nobody has asked for the message yet"
    dist.barrier()
    if rank == 1:
        received = poisoned(LARGE)
        dist.recv(received, 0)
        assert_same_bits(received, sent, "after the collectives")
    if sending is not None:
        sending.wait()


@pytest.mark.parametrize("size", [2, 3, 5])
def test_ring(launch: Launcher, size: int) -> None:
    launch(check_ring, size)


def test_receive_posted_before_send_on_both_sides(launch: Launcher) -> None:
    launch(check_receive_first, 2)


def test_messages_keep_their_order(launch: Launcher) -> None:
    launch(check_order, 2)


def test_tags_out_of_order(launch: Launcher) -> None:
    launch(check_tags, 2)


@pytest.mark.parametrize("size", [2, 4])
def test_receive_from_any_source(launch: Launcher, size: int) -> None:
    launch(check_any_source, size)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_batch(launch: Launcher, size: int) -> None:
    launch(check_batch, size)


def test_ranks_of_a_subgroup(launch: Launcher) -> None:
    launch(check_in_subgroup, 3)


@pytest.mark.freescale_only
def test_large_message_waits_for_its_receive_beside_collectives(launch: Launcher) -> None:
    launch(check_beside_collectives, 3)
