"""Ranks on emulated links for backends that use the network: a namespace each, joined by a bridge.

What a rank sends to others passes a token bucket of the kernel (``tc``'s tbf). As with
``FREESCALE_EMULATED_LINK_RATE``, only what leaves a rank is limited. freescale itself can't run
here: its ranks meet over Unix sockets of one network namespace, so it is compared from outside,
under that variable.

Needs root and iproute2. All that is made lies in namespaces of its own and goes with them; only
SIGKILL leaves them behind (``ip netns list`` shows them as ``fs-<pid>-…``).
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from freescale_pg.bench.launch import (
    Command,
    Program,
    command_line,
    started_together,
    terminated_as_exit,
    wait_for_all,
)

# Each command takes milliseconds.
_COMMAND_LIMIT = 20.0
_INTERFACE = "eth0"
# As fast networks have it: headers are 0.7 % of the bytes, which count in the rate.
_MTU = 9000
# The bucket must hold the largest packet the stack hands over at once, and what a late timer owes.
_LEAST_BURST = 64 << 10
_BURST_SECONDS = 0.001
_MOST_RANKS = 200
_MASTER_PORT = 29500  # in a namespace of its own, so always free


class ShapingUnavailableError(RuntimeError):
    """This machine or user can't make shaped ranks; the message says what was refused."""


@dataclass(frozen=True)
class ShapedRank:
    """How to start one rank on its link.

    Attributes:
        prefix: goes before the rank's command.
        environment: what a torch rank needs beside it: its place, where to meet, and the interface.
    """

    prefix: tuple[str, ...]
    environment: Mapping[str, str]


@contextmanager
def shaped_ranks(world_size: int, rate: int) -> Iterator[list[ShapedRank]]:
    """Makes a network of ``world_size`` ranks and removes it at the end, however that comes.

    SIGTERM ends the block with ``SystemExit`` if the main thread is in it. Processes that run in
    the namespaces must have ended before the block does.

    Args:
        world_size: ranks, up to 200.
        rate: bytes per second that each rank sends to others at most, headers included.

    Yields:
        The ranks, in order.

    Raises:
        ShapingUnavailableError: it is not permitted here, or ``ip`` or ``tc`` is missing.
    """
    if not 1 <= world_size <= _MOST_RANKS or rate < 1:
        raise ValueError(f"{world_size} ranks at {rate} bytes/s")
    _check_tools()
    name = f"fs-{os.getpid()}-{secrets.token_hex(3)}"
    with ExitStack() as stack:
        stack.enter_context(terminated_as_exit())
        hub = _namespace(stack, f"{name}-hub")
        _ip(hub, "link", "add", "bridge", "type", "bridge")
        _ip(hub, "link", "set", "bridge", "up")
        members = [_namespace(stack, f"{name}-{rank}") for rank in range(world_size)]
        for rank, member in enumerate(members):
            _connect(hub, member, rank, rate)
        yield [_described(member, rank, world_size) for rank, member in enumerate(members)]


def run_shaped(
    program: Program, arguments: Sequence[str], world_size: int, rate: int, limit: float | None
) -> None:
    """Runs ``program`` as ``world_size`` shaped ranks and waits for them.

    Args:
        program: path of a script, or a module.
        arguments: its arguments.
        world_size: ranks.
        rate: bytes per second, as for :func:`shaped_ranks`.
        limit: seconds after which ranks that still run are ended; None: no limit.

    Raises:
        LaunchError: a rank failed or ran into the limit; its own message is on stderr.
        ShapingUnavailableError: as for :func:`shaped_ranks`.
    """
    with started_shaped(program, arguments, world_size, rate) as processes:
        wait_for_all(processes, limit)


@contextmanager
def started_shaped(
    program: Program, arguments: Sequence[str], world_size: int, rate: int
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Starts ``program`` as ``world_size`` shaped ranks, as ``started_together`` does.

    Args:
        program: path of a script, or a module.
        arguments: its arguments.
        world_size: ranks.
        rate: bytes per second, as for :func:`shaped_ranks`.

    Yields:
        Their processes, in order.

    Raises:
        ShapingUnavailableError: as for :func:`shaped_ranks`.
    """
    command = command_line(program, arguments)
    with shaped_ranks(world_size, rate) as ranks:
        commands = [Command([*rank.prefix, *command], rank.environment) for rank in ranks]
        with started_together(commands) as processes:
            yield processes


def _check_tools() -> None:
    if os.geteuid() != 0:
        raise ShapingUnavailableError("network namespaces need root")
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise ShapingUnavailableError(f"{tool} is missing; it comes with iproute2")


def _namespace(stack: ExitStack, name: str) -> str:
    # First the removal: a signal may come right after the making.
    stack.callback(_remove, name)
    _run("ip", "netns", "add", name)
    _ip(name, "link", "set", "lo", "up")
    return name


def _remove(name: str) -> None:
    # Fails if it was never made.
    command = ["ip", "netns", "delete", name]
    subprocess.run(command, capture_output=True, check=False, timeout=_COMMAND_LIMIT)


def _connect(hub: str, member: str, rank: int, rate: int) -> None:
    port = f"port{rank}"
    ends = ("link", "add", port, "type", "veth", "peer", "name", _INTERFACE, "netns", member)
    _ip(hub, *ends)
    for namespace, end in ((hub, port), (member, _INTERFACE)):
        _ip(namespace, "link", "set", end, "mtu", str(_MTU))
    _ip(hub, "link", "set", port, "master", "bridge")
    _ip(hub, "link", "set", port, "up")
    _ip(member, "addr", "add", f"{_address(rank)}/24", "dev", _INTERFACE)
    _ip(member, "link", "set", _INTERFACE, "up")
    burst = max(_LEAST_BURST, int(rate * _BURST_SECONDS))
    # Deep enough that TCP's own limits hold it back before packets are dropped.
    queue = max(4 << 20, rate // 10)
    bucket = ("tbf", "rate", f"{8 * rate}bit", "burst", f"{burst}b", "limit", f"{queue}b")
    _run("tc", "-netns", member, "qdisc", "add", "dev", _INTERFACE, "root", *bucket)


def _address(rank: int) -> str:
    return f"10.0.0.{rank + 1}"


def _described(namespace: str, rank: int, world_size: int) -> ShapedRank:
    environment = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": _address(0),
        "MASTER_PORT": str(_MASTER_PORT),
        "GLOO_SOCKET_IFNAME": _INTERFACE,
    }
    return ShapedRank(("ip", "netns", "exec", namespace), environment)


def _ip(namespace: str, *arguments: str) -> None:
    _run("ip", "-netns", namespace, *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=_COMMAND_LIMIT
    )
    if done.returncode != 0:
        raise ShapingUnavailableError(f"{' '.join(command)}: {done.stderr.strip()}")
