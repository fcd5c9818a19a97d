"""The emulated network itself, without torch: what it connects, what it separates, what is left."""

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from namespaces import STEP_LIMIT
from network import CONGESTION_CONTROL, Host, HostPlan, Network
from relay import Wire

MakeNetwork = Callable[..., Network]

PORT = 4000
# Seconds within which packets that are not lost arrive, and for which those that are have to stay
# away. Nothing fails because of it on a slow machine, but a fault that is none may go unseen.
SILENCE = 0.3
# Sends $3 bytes by TCP to address $1, port $2; the other side reads them to the end.
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=30) as link:
    link.sendall(bytes(int(sys.argv[3])))
    link.shutdown(socket.SHUT_WR)
    print(int.from_bytes(link.recv(8), "little"))
"""
RECEIVE = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.create_server((sys.argv[1], int(sys.argv[2])), family=family) as server:
    print("listening", flush=True)
    server.settimeout(30)
    link, _ = server.accept()
    link.settimeout(30)
    count = 0
    while piece := link.recv(1 << 20):
        count += len(piece)
    link.sendall(count.to_bytes(8, "little"))
"""
# Answers to each datagram with the same, and says so.
ECHO = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.socket(family, socket.SOCK_DGRAM) as echo:
    echo.bind((sys.argv[1], int(sys.argv[2])))
    print("listening", flush=True)
    while True:
        word, peer = echo.recvfrom(64)
        print(word.decode(), flush=True)
        echo.sendto(word, peer)
"""
# Sends datagrams until one comes back, or for $3 seconds; prints which one did.
CALL = """
import socket, sys, time
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.socket(family, socket.SOCK_DGRAM) as link:
    link.settimeout(0.05)
    end = time.monotonic() + float(sys.argv[3])
    while time.monotonic() < end:
        try:
            link.sendto(b"word", (sys.argv[1], int(sys.argv[2])))
            print(link.recv(64).decode())
            break
        except OSError:
            time.sleep(0.01)
"""


def python(program: str, *arguments: object) -> list[str]:
    return [sys.executable, "-ISc", program, *map(str, arguments)]


@contextlib.contextmanager
def served(host: Host, program: str, *arguments: object) -> Iterator[list[str]]:
    """Runs a program on a host in the block, from when it listens; yields its further output, which
    is there after the block."""
    process = host.popen(python(program, *arguments))
    assert process.stdout is not None
    output: list[str] = []
    try:
        assert process.stdout.readline() == "listening\n"
        yield output
    finally:
        host.kill_all()
        output.append(process.communicate(timeout=STEP_LIMIT)[0])


def transfer(sender: Host, receiver: Host, count: int, family: int = 4) -> int:
    """Sends bytes by TCP; returns how many arrived."""
    where = receiver.address(family=family)
    with served(receiver, RECEIVE, where, PORT):
        return int(sender.run(python(SEND, where, PORT, count), limit=60))


def call(
    caller: Host, callee: Host, seconds: float, family: int = 4, rail: int = 0
) -> tuple[bool, bool]:
    """Whether datagrams get to the other host, which answers, and whether the answers come back."""
    where = callee.address(rail, family)
    with served(callee, ECHO, where, PORT) as heard:
        answer = caller.run(python(CALL, where, PORT, seconds))
    return "word" in heard[0], answer == "word\n"


def hears(caller: Host, callee: Host, seconds: float, family: int = 4, rail: int = 0) -> bool:
    return call(caller, callee, seconds, family, rail) == (True, True)


def carrier(host: Host, rail: int = 0) -> bool:
    return host.run(["cat", f"/sys/class/net/{host.interface(rail)}/carrier"]) == "1\n"


@pytest.fixture
def pair(make_network: MakeNetwork) -> Iterator[Network]:
    with make_network(2) as network:
        yield network


def test_hosts_reach_each_other(make_network: MakeNetwork) -> None:
    with make_network(3, rails=2) as network:
        for caller, callee in itertools.combinations(network.hosts, 2):
            for family, rail in itertools.product((4, 6), (0, 1)):
                assert hears(caller, callee, STEP_LIMIT, family, rail), (family, rail)


@pytest.mark.parametrize("mtu", [1500, 9000])
@pytest.mark.parametrize("family", [4, 6])
def test_streams_arrive_whole(make_network: MakeNetwork, mtu: int, family: int) -> None:
    with make_network(2, mtu=mtu) as network:
        first, second = network.hosts
        assert transfer(first, second, 3_000_000, family) == 3_000_000
        found = json.loads(network.hosts[0].run(["ip", "-j", "link", "show", "eth0"]))
        assert found[0]["mtu"] == mtu


def test_hosts_are_separate(pair: Network) -> None:
    for kind in ("net", "uts", "ipc", "pid", "mnt"):
        link = Path(f"/proc/self/ns/{kind}")
        inside = [host.run(["readlink", str(link)]).strip() for host in pair.hosts]
        assert len({str(link.readlink()), *inside}) == 3, kind
    first, second = pair.hosts
    for folder in ("/dev/shm", "/tmp"):
        first.run(["touch", f"{folder}/freescale-test-file"])
        assert first.run(["ls", folder]).split().count("freescale-test-file") == 1
        assert "freescale-test-file" not in second.run(["ls", folder])
        assert not Path(f"{folder}/freescale-test-file").exists()
    boots = {host.run(["cat", "/proc/sys/kernel/random/boot_id"]) for host in pair.hosts}
    assert len(boots) == 1  # As of containers.


def test_hosts_cannot_reach_the_machine(pair: Network) -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        for address in ("127.0.0.1", *machine_addresses()):
            with pytest.raises(RuntimeError, match=r"refused|unreachable"):
                pair.hosts[0].run(python(SEND, address, port, 0))
    devices = pair.hosts[0].run(["ls", "/sys/class/net"]).split()
    assert devices == ["eth0", "lo"]


def machine_addresses() -> list[str]:
    shown = json.loads(subprocess.check_output(["ip", "-j", "-4", "address"], text=True))
    return [info["local"] for device in shown for info in device["addr_info"]]


def test_hosts_may_have_one_name(make_network: MakeNetwork) -> None:
    with make_network([HostPlan("twin"), HostPlan("twin")]) as network:
        for host in network.hosts:
            assert host.run(["uname", "-n"]) == "twin\n"
            assert host.run(["getent", "ahostsv4", "twin"]).split()[0] == host.address()


def test_hosts_as_planned(make_network: MakeNetwork) -> None:
    plans = [
        HostPlan("one", interface="eno", names={"one": "127.0.0.1"}),
        HostPlan(families="4"),
    ]
    with make_network(plans, common_shm=True) as network:
        first, second = network.hosts
        assert first.run(["getent", "ahostsv4", "one"]).split()[0] == "127.0.0.1"
        assert first.run(["ls", "/sys/class/net"]).split() == ["eno0", "lo"]
        assert "inet6" not in second.run(["ip", "address", "show", "eth0"])
        first.run(["touch", "/dev/shm/common"])
        second.run(["test", "-e", "/dev/shm/common"])
        assert not Path("/dev/shm/common").exists()
        assert hears(first, second, STEP_LIMIT)


def test_congestion_control_is_that_of_the_hosts(make_network: MakeNetwork) -> None:
    own = Path(CONGESTION_CONTROL).read_text()
    with make_network(2, congestion="reno") as network:
        for host in network.hosts:
            assert host.run(["cat", CONGESTION_CONTROL]).strip() == "reno"
        assert Path(CONGESTION_CONTROL).read_text() == own


def test_unknown_congestion_control_is_refused(make_network: MakeNetwork) -> None:
    with (
        pytest.raises(RuntimeError, match="tcp_congestion_control"),
        make_network(2, congestion="no such control"),
    ):
        pass


def test_rate_is_limited_at_both_ends(make_network: MakeNetwork) -> None:
    rate, count = 40_000_000, 4_000_000
    with make_network(2, rate=rate) as network:
        first, second = network.hosts
        start = time.monotonic()
        assert transfer(first, second, count) == count
        seconds = time.monotonic() - start
        # Not faster than the rate allows, a burst aside. It may well be slower.
        assert seconds > count * 8 / rate / 2
        assert first.queue()["kind"] == network.queue(second)["kind"] == "tbf"
        assert first.queue()["overlimits"] > 0
        assert network.queue(second)["bytes"] > count


def test_counters_count_what_a_host_sends_and_receives(pair: Network) -> None:
    first, second = pair.hosts
    before = [host.counters() for host in pair.hosts]
    transfer(first, second, 1_000_000)
    after = [host.counters() for host in pair.hosts]
    assert 1_000_000 < after[0].sent - before[0].sent < 2_000_000
    assert 1_000_000 < after[1].received - before[1].received < 2_000_000
    assert after[1].sent - before[1].sent < 500_000
    assert after[1].received_packets > before[1].received_packets


def test_unplugged_host_sees_its_carrier_go_and_come(pair: Network) -> None:
    first, second = pair.hosts
    assert carrier(first)
    pair.unplug(first)
    assert not carrier(first)
    assert not hears(second, first, SILENCE)
    pair.plug(first)
    assert carrier(first)
    assert hears(second, first, STEP_LIMIT)


def test_interface_taken_down_keeps_its_addresses(pair: Network) -> None:
    first, second = pair.hosts
    first.set_interface(up=False)
    assert not hears(second, first, SILENCE)
    first.set_interface(up=True)
    for family in (4, 6):
        assert hears(second, first, STEP_LIMIT, family)


@pytest.mark.parametrize("direction", ["from", "to", "both"])
def test_silenced_host_notices_nothing(pair: Network, direction: str) -> None:
    first, second = pair.hosts
    assert hears(first, second, STEP_LIMIT)
    pair.silence(first, direction=direction)
    before = first.counters()
    assert call(first, second, SILENCE) == (direction == "to", False)
    assert carrier(first)
    assert first.counters().sent > before.sent
    pair.restore(first, direction=direction)
    assert hears(first, second, STEP_LIMIT)


def test_silence_on_one_rail_leaves_the_other(make_network: MakeNetwork) -> None:
    with make_network(2, rails=2) as network:
        first, second = network.hosts
        network.silence(first, rail=1)
        assert not hears(first, second, SILENCE, rail=1)
        assert hears(first, second, STEP_LIMIT, rail=0)


# --- The relay ------------------------------------------------------------------------------------


def test_relay_passes_streams(make_network: MakeNetwork) -> None:
    with make_network(3, rails=2, wire=Wire()) as network:
        for family in (4, 6):
            assert transfer(network.hosts[0], network.hosts[1], 3_000_000, family) == 3_000_000
        assert transfer(network.hosts[1], network.hosts[2], 1_000_000) == 1_000_000
        assert hears(network.hosts[0], network.hosts[2], STEP_LIMIT, rail=1)


def test_relay_delays(make_network: MakeNetwork) -> None:
    with make_network(2, wire=Wire(delay=0.1)) as network:
        first, second = network.hosts
        start = time.monotonic()
        assert transfer(first, second, 10) == 10
        # Two packets of the handshake at least, before the data; one with the answer.
        assert time.monotonic() - start > 0.3


def test_relay_loses_some_packets_and_streams_recover(make_network: MakeNetwork) -> None:
    with make_network(2, wire=Wire(loss=0.02, seed=1)) as network:
        assert network.relay is not None
        first, second = network.hosts
        assert transfer(first, second, 2_000_000) == 2_000_000
        counts = network.relay.set(Wire())
        # 1400 packets or more have passed: that none of them was lost does not happen.
        assert counts.passed > 1000
        assert counts.lost > 0


def test_relay_cuts_and_mends(make_network: MakeNetwork) -> None:
    with make_network(2, wire=Wire()) as network:
        assert network.relay is not None
        first, second = network.hosts
        assert hears(first, second, STEP_LIMIT)
        network.relay.set(Wire(cut=True))
        assert not hears(first, second, SILENCE)
        assert carrier(first)
        network.relay.set(Wire())
        assert hears(first, second, STEP_LIMIT)


# --- What is left ---------------------------------------------------------------------------------


def spaces_of(pid: int) -> set[str]:
    """The namespaces of a process; empty if it has ended."""
    found = set()
    for kind in ("net", "mnt", "uts"):
        with contextlib.suppress(OSError):
            found.add(str(Path(f"/proc/{pid}/ns/{kind}").readlink()))
    return found


def await_gone(spaces: set[str]) -> None:
    """Waits until no process is in any of these namespaces: then the kernel has them no more."""
    deadline = time.monotonic() + STEP_LIMIT
    while True:
        pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
        left = spaces & set().union(*map(spaces_of, pids))
        if not left:
            return
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def machine() -> dict[str, set[str]]:
    """What a network might change by mistake, and other programs meanwhile hardly do."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    names = Path("/run/netns")
    return {
        "mounts": {line for line in mounts if re.search(r" /(tmp|sys|dev/shm|etc/hosts) ", line)},
        "names": {path.name for path in names.iterdir()} if names.exists() else set(),
        "hostname": {socket.gethostname()},
        "addresses": set(machine_addresses()),
    }


def test_machine_stays_as_it_was_and_nothing_is_left(make_network: MakeNetwork) -> None:
    before = machine()
    with pytest.raises(ZeroDivisionError), make_network(2, wire=Wire()) as network:
        spaces = set().union(*(spaces_of(host.door.pid) for host in network.hosts))
        assert len(spaces) == 6
        network.hosts[0].popen(["sleep", "1000"])
        assert machine() == before
        ports = {network.port(host) for host in network.hosts}
        assert not ports & {name for _, name in socket.if_nameindex()}
        raise ZeroDivisionError
    await_gone(spaces)
    assert machine() == before


OWNER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from network import Network
from relay import Wire
from pathlib import Path
network = Network(2, wire=Wire() if Path("/dev/net/tun").exists() else None)
sleepers = [host.popen(["sleep", "1000"]) for host in network.hosts]
print(*(host.door.pid for host in network.hosts), *(s.pid for s in sleepers), flush=True)
time.sleep(1000)
"""


def test_nothing_is_left_when_the_owner_is_killed() -> None:
    program = [sys.executable, "-c", textwrap.dedent(OWNER), str(Path(__file__).parent)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pids = [int(word) for word in owner.stdout.readline().split()]
        assert len(pids) == 4
        spaces = set().union(*map(spaces_of, pids)) - spaces_of(os.getpid())
        # The machine's own for who waits outside for a program inside.
        assert len(spaces) == 6
        owner.send_signal(signal.SIGKILL)
    await_gone(spaces)
    deadline = time.monotonic() + STEP_LIMIT
    while any(running(pid) for pid in pids):
        assert time.monotonic() < deadline, pids
        time.sleep(0.02)


def running(pid: int) -> bool:
    """Not gone, and not a zombie that waits for whoever took over its parent's duties."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
