"""Emulated hosts on this machine: a network namespace and more for each, and bridges between.

Host ``i`` has on rail ``r`` the addresses 10.77.r.(i+1)/24 and fd77:0:0:r::(i+1)/64. A rail is one
bridge, in namespaces of its own: the machine's interfaces and routes are not touched.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from namespaces import KINDS, Namespaces
from relay import Relay, Wire

REPOSITORY = Path(__file__).resolve().parents[2]
# What the mount namespace of a new host needs. $1: hostname, $2: /etc/hosts, $3: "own" if /dev/shm
# is, others: folders that stay visible under the new /tmp. Mounts are prepared at /dev/shm.
SETUP = """
echo "$1" > /proc/sys/kernel/hostname
hosts=$2 shm=$3
shift 3
# As it is, /sys has the machine's interfaces, and UCX looks there.
mount -t sysfs sysfs /dev/shm
[ ! -d /sys/fs/cgroup ] || mount --rbind /sys/fs/cgroup /dev/shm/fs/cgroup
mount --move /dev/shm /sys
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
for folder; do
  mkdir -p "/dev/shm/${folder#/tmp/}"
  mount --rbind "$folder" "/dev/shm/${folder#/tmp/}"
done
mount --move /dev/shm /tmp
[ "$shm" != own ] || mount -t tmpfs -o mode=1777 tmpfs /dev/shm
printf '%s\\n' "$hosts" > /tmp/hosts
# Another host's is removed already, and nothing can be mounted on that.
[ "$shm" = own ] || umount /etc/hosts
mount --bind /tmp/hosts /etc/hosts
rm /tmp/hosts
# IPv6 addresses are usable at once, and are still there after the interface was down.
for name in default all; do
  [ ! -d /proc/sys/net/ipv6 ] || echo 0 > /proc/sys/net/ipv6/conf/$name/accept_dad
  [ ! -d /proc/sys/net/ipv6 ] || echo 1 > /proc/sys/net/ipv6/conf/$name/keep_addr_on_down
done
ip link set lo up
"""
# A program of the classic packet filter: return TC_ACT_SHOT, "drop".
DROP_ALL = ("bpf", "da", "bytecode", "1,6 0 0 2")
# A hardware address that no interface has.
NOBODY = "02:00:00:00:00:01"
CONGESTION_CONTROL = "/proc/sys/net/ipv4/tcp_congestion_control"
# Sides of a port of the switch.
SIDES = {"from": ("ingress",), "to": ("egress",), "both": ("ingress", "egress")}


@dataclass(frozen=True)
class HostPlan:
    """What one host shall be like.

    Attributes:
        name: Its hostname; None: "host0" and so on. Hosts may have the same.
        interface: Its interfaces' names without their numbers.
        families: Of addresses: "4", "6" or "46".
        names: Names that its /etc/hosts has besides those of all hosts, or instead of them.
    """

    name: str | None = None
    interface: str = "eth"
    families: str = "46"
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Counters:
    """Of one interface, as its host sees it: bytes with the headers of all layers, and packets."""

    received: int
    received_packets: int
    sent: int
    sent_packets: int


class Host(Namespaces):
    """One emulated host.

    Args:
        number: Of the host in its network.
        plan: What it shall be like.
        hosts_file: Lines of /etc/hosts.
        folders: To keep visible under its own /tmp.
        shares_shm_of: The host whose /dev/shm is this one's too; None: it has its own.
    """

    def __init__(
        self,
        number: int,
        plan: HostPlan,
        hosts_file: str,
        folders: Sequence[str],
        shares_shm_of: "Host | None",
    ) -> None:
        self.number = number
        self.plan = plan
        self.name = plan.name or f"host{number}"
        shm = "own" if shares_shm_of is None else "common"
        super().__init__(KINDS, SETUP, [self.name, hosts_file, shm, *folders], shares_shm_of)

    def interface(self, rail: int = 0) -> str:
        return f"{self.plan.interface}{rail}"

    def address(self, rail: int = 0, family: int = 4) -> str:
        return address(self.number, rail, family)

    def counters(self, rail: int = 0) -> Counters:
        """Reads the counters of an interface; needs no process."""
        for line in Path(f"/proc/{self.door.pid}/net/dev").read_text().splitlines():
            name, _, numbers = line.partition(":")
            if name.strip() == self.interface(rail):
                values = [int(word) for word in numbers.split()]
                return Counters(values[0], values[1], values[8], values[9])
        raise KeyError(f"{self.name} has no {self.interface(rail)}")

    def queue(self, rail: int = 0) -> dict[str, Any]:
        """The counters of the rate limit at the host: bytes, packets, drops, overlimits."""
        return _queue(self, self.interface(rail))

    def set_interface(self, up: bool, rail: int = 0) -> None:
        """Takes the interface down or up on the host, as its administrator would."""
        self.run(["ip", "link", "set", self.interface(rail), "up" if up else "down"])


class Network:
    """Hosts, connected. Everything is gone when the block ends, or this process.

    Args:
        hosts: How many, or a plan of each.
        rails: Interfaces of each host.
        mtu: Of all of them.
        rate: Bits per second of each interface in each direction; None: no limit.
        burst: Seconds' worth of bytes that pass at once after a pause.
        backlog: Seconds for which a packet may wait at an interface; beyond them it is dropped.
        congestion: TCP's congestion control on the hosts, one that the machine allows to all; None:
            the machine's own.
        common_shm: The hosts share one /dev/shm, as containers may; the machine's it is not.
        wire: Host 0 is at the other end of this wire; None: it is on the same switch as the rest.
        folders: To be visible to the hosts though they are in /tmp, of which each host has its own.
    """

    def __init__(
        self,
        hosts: int | Sequence[HostPlan] = 2,
        *,
        rails: int = 1,
        mtu: int = 1500,
        rate: int | None = None,
        burst: float = 0.004,
        backlog: float = 0.05,
        congestion: str | None = None,
        common_shm: bool = False,
        wire: Wire | None = None,
        folders: Sequence[Path] = (),
    ) -> None:
        plans = [HostPlan()] * hosts if isinstance(hosts, int) else list(hosts)
        self.hosts: list[Host] = []
        self.rails = range(rails)
        self.mtu, self.rate, self.burst, self.backlog = mtu, rate, burst, backlog
        self.congestion = congestion
        self.relay: Relay | None = None
        self._switch = Namespaces(["net"])
        try:
            for number, plan in enumerate(plans):
                first = self.hosts[0] if self.hosts and common_shm else None
                file = _hosts_file(number, plans)
                self.hosts.append(Host(number, plan, file, _visible(folders), first))
            self._connect(wire is not None)
            if wire is not None:
                self._insert(wire)
        except BaseException:
            self.close()
            raise

    def _connect(self, two_switches: bool) -> None:
        links, queues = [], []
        for rail in self.rails:
            for side in ("near", "rail") if two_switches else ("rail",):
                links.append(f"link add {side}{rail} type bridge mcast_snooping 0")
                links.append(f"link set {side}{rail} addrgenmode none")
                links.append(f"link set {side}{rail} up")
            for host in self.hosts:
                port, side = self.port(host, rail), "rail"
                if two_switches and host.number == 0:
                    side = "near"
                links.append(
                    f"link add {port} mtu {self.mtu} type veth peer"
                    f" name {host.interface(rail)} mtu {self.mtu} netns {host.door.pid}"
                )
                # In two steps, or the switch speaks on the link while that comes up.
                links.append(f"link set {port} addrgenmode none")
                links.append(f"link set {port} master {side}{rail} up")
                queues.append(f"qdisc add dev {port} clsact")
                queues += self._limit(port)
        self._switch.run(["ip", "-batch", "-"], "\n".join(links) + "\n")
        self._switch.run(["tc", "-batch", "-"], "\n".join(queues) + "\n")
        for host in self.hosts:
            self._configure(host)

    def _configure(self, host: Host) -> None:
        links = []
        for rail in self.rails:
            name = host.interface(rail)
            for family, bits in (("4", 24), ("6", 64)):
                if family in host.plan.families:
                    where = f"{host.address(rail, int(family))}/{bits}"
                    links.append(f"address add {where} dev {name}")
            if "6" not in host.plan.families:
                links.append(f"link set {name} addrgenmode none")
            links.append(f"link set {name} up")
        host.run(["ip", "-batch", "-"], "\n".join(links) + "\n")
        queues = [line for rail in self.rails for line in self._limit(host.interface(rail))]
        if queues:
            host.run(["tc", "-batch", "-"], "\n".join(queues) + "\n")
        if self.congestion is not None:
            host.run(["sh", "-c", f"cat > {CONGESTION_CONTROL}"], self.congestion)

    def _limit(self, device: str) -> list[str]:
        if self.rate is None:
            return []
        # Never less than a few large packets.
        burst = max(64 << 10, round(self.rate / 8 * self.burst))
        limit = max(256 << 10, round(self.rate / 8 * self.backlog))
        return [f"qdisc add dev {device} root tbf rate {self.rate}bit burst {burst} limit {limit}"]

    def _insert(self, wire: Wire) -> None:
        pairs = [(f"tapn{rail}", f"tapf{rail}") for rail in self.rails]
        self.relay = Relay(self._switch, pairs, wire)
        links = []
        for rail, pair in zip(self.rails, pairs, strict=True):
            for tap, side in zip(pair, ("near", "rail"), strict=True):
                links.append(f"link set {tap} mtu {self.mtu} addrgenmode none")
                links.append(f"link set {tap} master {side}{rail} up")
        self._switch.run(["ip", "-batch", "-"], "\n".join(links) + "\n")

    # --- Faults -----------------------------------------------------------------------------------

    def plug(self, host: Host, rail: int = 0) -> None:
        self._switch.run(["ip", "link", "set", self.port(host, rail), "up"])

    def unplug(self, host: Host, rail: int = 0) -> None:
        """Takes the link down at the switch: the host sees its carrier go."""
        self._switch.run(["ip", "link", "set", self.port(host, rail), "down"])

    def silence(self, host: Host, rail: int = 0, direction: str = "both") -> None:
        """Loses all packets, and the host sees nothing of it.

        Args:
            host: Whose packets.
            rail: On which interface.
            direction: Those "from" the host, those "to" it, or "both".
        """
        for side in SIDES[direction]:
            where = ["dev", self.port(host, rail), side]
            drop = ["protocol", "all", "prio", "1", *DROP_ALL]
            self._switch.run(["tc", "filter", "add", *where, *drop])

    def restore(self, host: Host, rail: int = 0, direction: str = "both") -> None:
        """Ends :meth:`silence`."""
        for side in SIDES[direction]:
            self._switch.run(["tc", "filter", "del", "dev", self.port(host, rail), side])

    def separate(self, host: Host, other: Host) -> None:
        """Loses all packets between two hosts, which still reach the others."""
        for one, peer in ((host, other), (other, host)):
            lines = [
                f"neighbour replace {peer.address(rail, int(family))} lladdr {NOBODY}"
                f" dev {one.interface(rail)} nud permanent"
                for rail in self.rails
                for family in peer.plan.families
            ]
            one.run(["ip", "-batch", "-"], "\n".join(lines) + "\n")

    def queue(self, host: Host, rail: int = 0) -> dict[str, Any]:
        """As :meth:`Host.queue`, of what is sent to the host."""
        return _queue(self._switch, self.port(host, rail))

    def port(self, host: Host, rail: int = 0) -> str:
        """The switch's name for its end of a host's link."""
        return f"port{host.number}r{rail}"

    def close(self) -> None:
        if self.relay is not None:
            self.relay.close()
        for host in reversed(self.hosts):
            host.close()
        self._switch.close()

    def __enter__(self) -> "Network":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def address(host: int, rail: int = 0, family: int = 4) -> str:
    return f"10.77.{rail}.{host + 1}" if family == 4 else f"fd77:0:0:{rail}::{host + 1}"


def _hosts_file(number: int, plans: Sequence[HostPlan]) -> str:
    """All hosts by their numbers, and the own one by its hostname, which may be others' too."""
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    for peer, plan in enumerate(plans):
        own = [plan.name] if peer == number and plan.name is not None else []
        for name in {f"host{peer}", *own} - set(plans[number].names):
            lines += [f"{address(peer, 0, int(family))} {name}" for family in plan.families]
    lines += [f"{where} {name}" for name, where in plans[number].names.items()]
    return "\n".join(lines)


def _visible(folders: Sequence[Path]) -> list[str]:
    """Those folders that a new /tmp would hide, what programs are run from included."""
    wanted = [Path(sys.prefix), Path(sys.base_prefix), REPOSITORY, *folders]
    return [str(path) for path in wanted if path.is_relative_to("/tmp") and path != Path("/tmp")]


def _queue(place: Namespaces, device: str) -> dict[str, Any]:
    shown = json.loads(place.run(["tc", "-s", "-j", "qdisc", "show", "dev", device, "root"]))
    found: dict[str, Any] = shown[0]
    return found
