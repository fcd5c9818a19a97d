"""Faults between hosts on freescale: ranks that die, stop or leave, links that break, late bytes.

Every error has to be there within a bound far above what it takes and far below the timeout of the
group, so that it came by itself; the limit of the launcher catches what hangs, and its footprint
what is left behind.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from fault_bodies import (
    LARGE,
    SMALL,
    TIMEOUT,
    Exchange,
    error_of,
    exchange,
    exchange_for_ever,
    expect_error,
    expect_loss,
    init,
)
from harness.data import arbitrary, assert_same_bits, poisoned
from harness.launch import LAUNCH_LIMIT
from host_rank import await_word, say, was_said
from launcher import Job, Ranks
from network import Host, Network

MakeNetwork = Callable[..., Network]
Networks = Callable[[int], Network]

MIB = 1 << 20
# Bits per second at which an exchange of LARGE takes seconds, so that faults fall into it.
SLOW = 100_000_000
SHORT = timedelta(seconds=2)
FAST_HEARTBEAT = {"FREESCALE_HEARTBEAT_MS": "1000"}


@pytest.fixture
def slow_pair(make_network: MakeNetwork) -> Iterator[Network]:
    with make_network(2, rate=SLOW) as network:
        yield network


def await_traffic(host: Host, count: int) -> None:
    """Until the host has sent so many bytes more than now."""
    begin, deadline = host.counters().sent, time.monotonic() + LAUNCH_LIMIT
    while host.counters().sent - begin < count:
        assert time.monotonic() < deadline, "nothing is sent"
        time.sleep(0.005)


# --- Ranks that die -------------------------------------------------------------------------------


def check_death(rank: int, size: int, dead: int, doing: str) -> None:
    """The last host has the dead rank; the test kills it once it has said that it is ready."""
    survivors = [peer for peer in range(size) if peer != dead]
    group = dist.new_group(survivors)
    exchange(SMALL, "before")
    if rank == dead:
        if doing == "exchanging":
            threading.Timer(0.05, say, ["ready"]).start()
            exchange_for_ever()
        kept = [Exchange(LARGE, turn) for turn in range(3)] if doing == "in flight" else None
        say("ready")
        signal.pause()
        del kept
    if doing == "in flight":
        works = [Exchange(LARGE, turn) for turn in range(3)]
        # What the dead rank has sent and taken in time may well be right.
        calls: list[Callable[[], object]] = [each.finish for each in works]
        await_word("killed")
        calls.append(lambda: dist.all_reduce(torch.ones(1)))
        message = error_of(lambda: [call() for call in calls])
    else:
        message = error_of(exchange_for_ever if doing == "exchanging" else wait_for_dead)
    assert f"rank {dead}" in message, message
    if rank < size // 2:
        assert "on host host1" in message, message
    expect_error(lambda: dist.all_reduce(torch.ones(1)), f"rank {dead}")
    for turn in range(3):
        exchange(LARGE // 16, ("after", turn), group)
    # No survivor leaves before: that would be another reason for the others' errors.
    dist.barrier(group)


def wait_for_dead() -> None:
    await_word("killed")
    dist.all_reduce(torch.ones(1))


@pytest.mark.parametrize("doing", ["idle", "exchanging", "in flight"])
@pytest.mark.parametrize("per_host", [1, 2])
def test_death(shared_network: Networks, ranks: Ranks, per_host: int, doing: str) -> None:
    dead = 2 * per_host - 1
    job = ranks.start(
        shared_network(2), per_host, check_death, dead, doing, dies={dead}, timeout=TIMEOUT
    )
    job.await_word("ready")
    job.kill(dead)
    job.say("killed")
    job.wait()


def check_waiters_wake(rank: int, size: int) -> None:
    """Rank 2 dies while the others wait for it in a receive and in a collective."""
    exchange(SMALL, "before")
    if rank == 2:
        say("ready")
        signal.pause()
    if rank == 0:
        expect_loss(lambda: dist.recv(torch.empty(1), 2), 2, "host2")
    else:
        expect_loss(lambda: dist.all_reduce(torch.ones(1)), 2, "host2")
    say(f"done{rank}")
    await_word(f"done{1 - rank}")


def test_death_wakes_who_waits(shared_network: Networks, ranks: Ranks) -> None:
    job = ranks.start(shared_network(3), 1, check_waiters_wake, dies={2}, timeout=TIMEOUT)
    job.await_word("ready")
    job.kill(2)
    job.wait()


def check_restart(rank: int, size: int) -> None:
    """Rank 2 stands in for rank 1 when that is dead; ranks 0 goes on in its process."""
    if rank == 2:
        await_word("killed")
        init("second", 1, 2)
    else:
        init("first", rank, 2)
        exchange(LARGE, "first")
        if rank == 1:
            say("ready")
            signal.pause()
        expect_loss(lambda: dist.all_reduce(torch.ones(1)), 1, "host1")
        dist.destroy_process_group()
        init("second", 0, 2)
    for turn in range(3):
        exchange(LARGE, ("second", turn))


def test_fresh_process_in_the_place_of_a_dead_one(shared_network: Networks, ranks: Ranks) -> None:
    job = ranks.start(shared_network(2), [1, 2], check_restart, init=False, dies={1})
    job.await_word("ready")
    job.kill(1)
    job.say("killed")
    job.wait()


# --- Ranks that stop ------------------------------------------------------------------------------


def check_stop(rank: int, size: int) -> None:
    exchange(SMALL, "before")
    say(f"ready{rank}")
    await_word("stopped")
    if rank == 0:
        expect_loss(lambda: exchange(LARGE, "stopped"), 1, "host1")
        expect_error(lambda: exchange(SMALL, "later"), "has been silent for")
        say("lost")
        await_word("done1")
    else:
        # Rank 0 has given up, and this rank learns of it though rank 0 still is there.
        await_word("lost")
        expect_loss(lambda: exchange(LARGE, "stopped"), 0, "host0")
        say("done1")


def test_stopped_rank_is_lost(shared_network: Networks, ranks: Ranks) -> None:
    job = ranks.start(shared_network(2), 1, check_stop, timeout=TIMEOUT, environment=FAST_HEARTBEAT)
    job.await_word("ready0")
    job.await_word("ready1")
    job.stop(1)
    job.say("stopped")
    job.await_word("lost")
    job.resume(1)
    job.wait()


def check_survival(rank: int, size: int) -> None:
    """There is always an exchange under way until the test has said that all is well again."""
    turn, ended = 0, torch.zeros(1)
    while not ended:
        exchange(LARGE, turn)
        turn += 1
        ended[0] = float(was_said("mended"))
        dist.all_reduce(ended, dist.ReduceOp.MAX)
    exchange(LARGE // 8, "after")


@pytest.mark.parametrize("seconds", [1.0, 6.0])
def test_rank_that_stops_for_a_while(slow_pair: Network, ranks: Ranks, seconds: float) -> None:
    """Less than three heartbeats, which are 15 s, and in the second case more than TCP waits."""
    job = ranks.start(slow_pair, 1, check_survival, timeout=TIMEOUT)
    await_traffic(slow_pair.hosts[0], 2 * MIB)
    job.stop(1)
    time.sleep(seconds)
    job.resume(1)
    job.say("mended")
    job.wait()


# --- Links that break -----------------------------------------------------------------------------


def unplug(network: Network, broken: bool) -> None:
    (network.unplug if broken else network.plug)(network.hosts[1])


def set_down(network: Network, broken: bool) -> None:
    network.hosts[1].set_interface(not broken)


def silence(direction: str, network: Network, broken: bool) -> None:
    (network.silence if broken else network.restore)(network.hosts[1], direction=direction)


def silence_from(network: Network, broken: bool) -> None:
    silence("from", network, broken)


def silence_to(network: Network, broken: bool) -> None:
    silence("to", network, broken)


def silence_both(network: Network, broken: bool) -> None:
    silence("both", network, broken)


CUTS = [unplug, set_down, silence_from, silence_to, silence_both]
Cut = Callable[[Network, bool], None]


def cut_when_ready(job: Job, network: Network, cut: Cut) -> None:
    """Cuts the network off once both ranks are ready, and tells them."""
    job.await_word("ready0")
    job.await_word("ready1")
    cut(network, True)
    job.say("cut")


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.__name__)
def test_link_that_is_down_for_a_second(slow_pair: Network, ranks: Ranks, cut: Cut) -> None:
    job = ranks.start(slow_pair, 1, check_survival, timeout=TIMEOUT)
    await_traffic(slow_pair.hosts[0], 2 * MIB)
    cut(slow_pair, True)
    time.sleep(1.0)
    cut(slow_pair, False)
    job.say("mended")
    job.wait()


def check_cut(rank: int, size: int) -> None:
    exchange(SMALL, "before")
    say(f"ready{rank}")
    expect_loss(exchange_for_ever, 1 - rank, f"host{1 - rank}")
    dist.destroy_process_group()
    say(f"done{rank}")
    # Where the network is whole again the same processes find each other again.
    await_word("mended")
    init("again", rank, size)
    exchange(LARGE // 16, "again")


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.__name__)
def test_link_that_stays_down(slow_pair: Network, ranks: Ranks, cut: Cut) -> None:
    # Once with the heartbeat that users have, which needs a quarter of a minute.
    environment = {} if cut is unplug else FAST_HEARTBEAT
    job = ranks.start(slow_pair, 1, check_cut, timeout=TIMEOUT, environment=environment)
    job.await_word("ready0")
    job.await_word("ready1")
    await_traffic(slow_pair.hosts[0], 2 * MIB)
    cut(slow_pair, True)
    job.await_word("done0")
    job.await_word("done1")
    cut(slow_pair, False)
    job.say("mended")
    job.wait()


def check_separated(rank: int, size: int) -> None:
    """Rank 0 reaches both others, and is done with their parts when they lose each other."""
    exchange(SMALL, "before")
    say(f"ready{rank}")
    if rank == 0:
        expect_error(exchange_for_ever, "is lost: ")
        expect_error(lambda: dist.all_reduce(torch.ones(1)), "has lost a member: ", "is lost: ")
    else:
        # They call nothing more, by which rank 0 would learn, too.
        expect_error(exchange_for_ever, f"rank {3 - rank}", f"on host host{3 - rank}")
    say(f"done{rank}")
    # Nobody ends before the others have their errors: that would be another reason.
    for peer in range(size):
        await_word(f"done{peer}")


def test_hosts_that_lose_each_other_alone(make_network: MakeNetwork, ranks: Ranks) -> None:
    with make_network(3) as network:
        job = ranks.start(network, 1, check_separated, timeout=TIMEOUT, environment=FAST_HEARTBEAT)
        for rank in range(3):
            job.await_word(f"ready{rank}")
        network.separate(*network.hosts[1:])
        job.wait()


def check_late_network(rank: int, size: int) -> None:
    say(f"ready{rank}")
    await_word("cut")
    init("late", rank, size)
    exchange(LARGE // 16, "late")


@pytest.mark.parametrize("cut", [unplug, silence_both], ids=lambda cut: cut.__name__)
def test_link_that_comes_up_late(make_network: MakeNetwork, ranks: Ranks, cut: Cut) -> None:
    """After UCX has given up: 3 s where nobody has the address, 7 s where all is lost."""
    with make_network(2) as network:
        job = ranks.start(network, 1, check_late_network, init=False)
        cut_when_ready(job, network, cut)
        time.sleep(10.0)
        cut(network, False)
        job.wait()


def check_no_network(rank: int, size: int) -> None:
    say(f"ready{rank}")
    await_word("cut")
    error = error_of(lambda: init("none", rank, size, timeout=4.0))
    peer = 1 - rank
    assert f"rank {rank} could not connect to rank {peer}" in error, error
    assert f"host{peer}" in error or f"rank {peer} could not connect to rank {rank}" in error, error
    assert " Timed out " in error, error


@pytest.mark.parametrize("cut", [unplug, silence_both], ids=lambda cut: cut.__name__)
def test_link_that_never_comes_up(make_network: MakeNetwork, ranks: Ranks, cut: Cut) -> None:
    with make_network(2) as network:
        job = ranks.start(network, 1, check_no_network, init=False)
        cut_when_ready(job, network, cut)
        job.wait()


def check_idle_cut(rank: int, size: int) -> None:
    """Nobody sends, so that heartbeats alone can tell."""
    exchange(SMALL, "before")
    say(f"ready{rank}")
    await_word("cut")
    # The receiver sends nothing, and nothing comes.
    expect_loss(lambda: dist.recv(torch.empty(1), 1 - rank), 1 - rank, f"host{1 - rank}")
    say(f"done{rank}")
    await_word(f"done{1 - rank}")


@pytest.mark.parametrize("cut", [silence_from, silence_to], ids=lambda cut: cut.__name__)
def test_idle_link_that_is_cut(make_network: MakeNetwork, ranks: Ranks, cut: Cut) -> None:
    with make_network(2) as network:
        job = ranks.start(network, 1, check_idle_cut, timeout=TIMEOUT, environment=FAST_HEARTBEAT)
        cut_when_ready(job, network, cut)
        job.wait()


# --- Ranks that leave or do something else --------------------------------------------------------


def check_last_bytes(rank: int, size: int, root: int) -> None:
    """The root is through with the broadcast, and with the network, when all of it is sent."""
    expected = arbitrary(LARGE // 4, key=("last",))
    tensor = expected.clone() if rank == root else poisoned(LARGE // 4)
    dist.broadcast(tensor, root)
    if rank == root:
        dist.destroy_process_group()
    assert_same_bits(tensor, expected, "last")


@pytest.mark.parametrize("root", [0, 1])
def test_what_was_sent_last_arrives(make_network: MakeNetwork, ranks: Ranks, root: int) -> None:
    # A window of chunks takes nearly a second.
    with make_network(2, rate=10_000_000) as network:
        ranks(network, 1, check_last_bytes, root, timeout=TIMEOUT)


def check_skipped_collective(rank: int, size: int) -> None:
    exchange(SMALL, "before")
    group = dist.new_group(timeout=SHORT)
    if rank != size - 1:
        expect_error(
            lambda: exchange(LARGE, "skipped", group), f"rank {size - 1}", "Timed out after 2000 ms"
        )
    say(f"done{rank}")
    for peer in range(size):
        await_word(f"done{peer}")
    exchange(LARGE // 8, "after")


def check_abort(rank: int, size: int) -> None:
    """Bytes that come after an abort do not land in what the caller has back."""
    for turn in range(3):
        group = dist.new_group()
        flights = [Exchange(LARGE, (turn, flight), group) for flight in range(2)]
        say(f"flying{turn}-{rank}")
        await_word(f"flying{turn}-{1 - rank}")
        if rank == turn % 2:
            time.sleep(0.1)  # So that some bytes are here, and more on their way.
            group.abort()
        for flight in flights:
            with contextlib.suppress(RuntimeError):
                flight.finish()
                raise AssertionError("finished, so the test has aborted nothing")
        group.abort()
        kept = [flight.output.clone() for flight in flights]
        fresh = dist.new_group()
        exchange(LARGE // 8, ("fresh", turn), fresh)
        for flight, before in zip(flights, kept, strict=True):
            assert_same_bits(flight.output, before, "after the abort")


def test_abort_in_a_large_exchange(slow_pair: Network, ranks: Ranks) -> None:
    ranks(slow_pair, 1, check_abort, timeout=TIMEOUT)


def test_collective_that_one_host_skips(shared_network: Networks, ranks: Ranks) -> None:
    ranks(shared_network(2), 2, check_skipped_collective, timeout=TIMEOUT)
