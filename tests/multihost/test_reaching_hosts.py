"""Hosts that find each other, or say why not: names, interfaces, families of addresses, libraries,
mistakes of callers that are not on one host. On freescale.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pytest
import torch
import torch.distributed as dist

import test_lifecycle
import test_mismatch
from fault_bodies import LARGE, SMALL, exchange, expect_error, init
from host_rank import await_word, say
from launcher import Ranks
from network import HostPlan, Network

MakeNetwork = Callable[..., Network]
Networks = Callable[[int], Network]

# An address that containers have on every host, and that leads to the own one.
BRIDGE = """
link add docker0 type bridge
link add container type veth peer name inside
link set container master docker0 up
link set inside up
address add 172.17.0.1/16 dev docker0
link set docker0 up
"""


def check_links(rank: int, size: int) -> list[tuple[int, str, str]]:
    """Ranks of one host share memory, others have the network; both ends say the same."""
    exchange(SMALL, "links")
    exchange(LARGE // 16, "links")
    links = dist.group.WORLD._get_backend(torch.device("cpu")).links()
    hosts: list[int] = [0] * size
    dist.all_gather_object(hosts, int(os.environ["GROUP_RANK"]))
    for peer, transport, why in links:
        near = "self" if peer == rank else "shm"
        assert transport == (near if hosts[peer] == hosts[rank] else "ucx"), (rank, links)
        assert transport != "ucx" or ("another host" in why and "tcp/eth0" in why), why
    return links


def check_links_by_files(rank: int, size: int, environments: Sequence[Mapping[str, str]]) -> None:
    """The same, where the way to a store of TCP may be broken; each host has its own variables."""
    os.environ.update(environments[int(os.environ["GROUP_RANK"])])
    init("links", rank, size)
    exchange(SMALL, "links")
    exchange(LARGE // 16, "links")


# --- What hosts may be like -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "plans",
    [
        [HostPlan(name="node")] * 2,
        [HostPlan(families="6")] * 2,
        [HostPlan(families="46"), HostPlan(families="4")],
        [HostPlan(names={f"host{host}": "127.0.0.1"}) for host in range(2)],
        [HostPlan(name="node", names={"node": "127.0.1.1"})] * 2,
    ],
    ids=["same_name", "IPv6", "IPv6_on_one", "names_of_loopback", "own_name_of_loopback"],
)
def test_kinds_of_hosts(make_network: MakeNetwork, ranks: Ranks, plans: list[HostPlan]) -> None:
    family = 6 if plans[0].families == "6" else 4
    with make_network(plans) as network:
        ranks(network, 2, check_links, family=family)


def test_common_shm(make_network: MakeNetwork, ranks: Ranks) -> None:
    """Containers that share it are hosts of their own all the same: sockets cannot be shared."""
    with make_network(2, common_shm=True) as network:
        ranks(network, 2, check_links)


def check_url(rank: int, size: int) -> None:
    where = f"[{os.environ['MASTER_ADDR']}]:{os.environ['MASTER_PORT']}"
    dist.init_process_group("freescale", f"tcp://{where}", rank=rank, world_size=size)
    exchange(SMALL, "url")


def test_url_of_ipv6(make_network: MakeNetwork, ranks: Ranks) -> None:
    with make_network([HostPlan(families="6")] * 2) as network:
        ranks(network, 1, check_url, init=False, family=6)


def test_sockets_of_ipv6_alone(make_network: MakeNetwork, ranks: Ranks) -> None:
    """A socket of IPv6 does not take IPv4 there, and a short queue of connections."""
    script = "echo 1 > /proc/sys/net/ipv6/bindv6only; echo 4 > /proc/sys/net/core/somaxconn"
    with make_network(2) as network:
        for host in network.hosts:
            host.run(["sh", "-c", script])
        for family in (4, 6):
            ranks(network, 2, check_links, family=family)


def test_many_ranks(make_network: MakeNetwork, ranks: Ranks) -> None:
    """All connect to all at once, and hosts let few wait."""
    with make_network(4) as network:
        for host in network.hosts:
            host.run(["sh", "-c", "echo 4 > /proc/sys/net/core/somaxconn"])
        ranks(network, 3, check_links)


# --- Which interfaces -----------------------------------------------------------------------------


def test_address_that_every_host_has(make_network: MakeNetwork, ranks: Ranks) -> None:
    names = {"FREESCALE_IFNAME": "^docker0"}
    with make_network(2) as network:
        for host in network.hosts:
            host.run(["ip", "-batch", "-"], BRIDGE)
        ranks(network, 1, check_links)
        ranks(network, 1, check_links_by_files, [names, names], init=False)


def test_interfaces_of_other_names(make_network: MakeNetwork, ranks: Ranks) -> None:
    plans = [HostPlan(interface="eno"), HostPlan(interface="eth")]
    names = {"FREESCALE_IFNAME": "eno0,eth0"}
    with make_network(plans) as network:
        ranks(network, 1, check_links_by_files, [{}, {}], init=False)
        ranks(network, 1, check_links_by_files, [names, names], init=False)


def unplug(network: Network) -> None:
    network.unplug(network.hosts[1])


def set_down(network: Network) -> None:
    network.hosts[1].set_interface(False)


def silence(network: Network) -> None:
    network.silence(network.hosts[1])


@pytest.mark.parametrize("cut", [unplug, set_down, silence], ids=lambda cut: cut.__name__)
def test_dead_interface_beside_one_that_is_named(
    make_network: MakeNetwork, ranks: Ranks, cut: Callable[[Network], None]
) -> None:
    names = {"FREESCALE_IFNAME": "eth1"}
    with make_network(2, rails=2) as network:
        cut(network)
        ranks(network, 1, check_links_by_files, [names, names], init=False)


@pytest.mark.parametrize("cut", [unplug, set_down], ids=lambda cut: cut.__name__)
def test_dead_interface_that_can_be_seen(
    make_network: MakeNetwork, ranks: Ranks, cut: Callable[[Network], None]
) -> None:
    with make_network(2, rails=2) as network:
        cut(network)
        ranks(network, 1, check_links_by_files, [{}, {}], init=False)


def check_other_interface_breaks(rank: int, size: int) -> None:
    os.environ["FREESCALE_IFNAME"] = "eth1"
    init("first", rank, size)
    exchange(SMALL, "before")
    say(f"ready{rank}")
    await_word("cut")
    for turn in range(5):
        exchange(LARGE // 4, turn)


@pytest.mark.parametrize("cut", [unplug, set_down, silence], ids=lambda cut: cut.__name__)
def test_interface_that_is_not_used_breaks(
    make_network: MakeNetwork, ranks: Ranks, cut: Callable[[Network], None]
) -> None:
    with make_network(2, rails=2) as network:
        job = ranks.start(network, 1, check_other_interface_breaks, init=False)
        job.await_word("ready0")
        job.await_word("ready1")
        cut(network)
        job.say("cut")
        job.wait()


def check_refused(
    rank: int, size: int, environments: Sequence[Mapping[str, str]], words: Sequence[str]
) -> None:
    """Making the group fails on all, and soon, with what went wrong on one host."""
    os.environ.update(environments[int(os.environ["GROUP_RANK"])])
    expect_error(lambda: init("refused", rank, size), *words)
    say(f"refused{rank}")
    for peer in range(size):
        await_word(f"refused{peer}")


@pytest.mark.parametrize("name", ["eth9", "eth9,eth8", "eth"])
def test_unknown_interface(shared_network: Networks, ranks: Ranks, name: str) -> None:
    names = {"FREESCALE_IFNAME": name}
    words = [f"'{name}'", "there are lo, eth0", "rank"]
    ranks(shared_network(2), 2, check_refused, [{}, names], words, init=False)


@pytest.mark.parametrize("per_host", [1, 2])
@pytest.mark.parametrize("broken", [0, 1])
def test_host_without_ucx(
    shared_network: Networks, ranks: Ranks, per_host: int, broken: int
) -> None:
    nowhere = {"FREESCALE_UCX_LIBRARY": "/nowhere/libucp.so.0"}
    environments = [nowhere if host == broken else {} for host in range(2)]
    words = ["/nowhere/libucp.so.0", "rank"]
    ranks(shared_network(2), per_host, check_refused, environments, words, init=False)


def check_missing(rank: int, size: int) -> None:
    if rank < size // 2:
        expect_error(
            lambda: init("missing", rank, size, timeout=2.0), "Timed out waiting for rank 2, 3 of 4"
        )


def test_host_that_never_joins(shared_network: Networks, ranks: Ranks) -> None:
    ranks(shared_network(2), 2, check_missing, init=False)


# --- Mistakes -------------------------------------------------------------------------------------


MISTAKES = {
    "op": (test_mismatch.all_float, test_mismatch.gather, ["all_to_all_single", "all_gather_into"]),
    "dtype": (test_mismatch.all_float, test_mismatch.all_int, ["float32", "int32"]),
    "reduction": (
        partial(test_mismatch.reduce_with, "SUM"),
        partial(test_mismatch.reduce_with, "MAX"),
        ["all_reduce"],
    ),
    "root": (
        partial(test_mismatch.broadcast_from, 0),
        partial(test_mismatch.broadcast_from, 1),
        ["broadcast"],
    ),
}


@pytest.mark.parametrize("count", [test_mismatch.SMALL, test_mismatch.LARGE])
@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.parametrize("layout", [(1, 1), (1, 2)], ids=str)
def test_mistake(
    shared_network: Networks, ranks: Ranks, layout: tuple[int, int], name: str, count: int
) -> None:
    right, wrong, words = MISTAKES[name]
    calls = [partial(right, count), partial(wrong, count)]
    ranks(shared_network(2), layout, test_mismatch.check_mismatch, calls, words)


@pytest.mark.parametrize("count", [test_mismatch.SMALL, test_mismatch.LARGE])
def test_size_that_differs(shared_network: Networks, ranks: Ranks, count: int) -> None:
    calls = [partial(test_mismatch.all_float, each) for each in (count, count + 1)]
    words = ["all_to_all_single", str(4 * count), str(4 * count + 4)]
    ranks(shared_network(2), 1, test_mismatch.check_mismatch, calls, words)


def test_forked_child(shared_network: Networks, ranks: Ranks) -> None:
    ranks(shared_network(2), 1, test_lifecycle.check_forked_child_is_told)
