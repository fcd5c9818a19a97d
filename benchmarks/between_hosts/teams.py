"""Contestants between emulated hosts, each with ranks of its own, that take turns.

What a backend does between hosts is settled by the environment when its process starts, so ways of
one backend are compared as teams of different processes. A team that is not asked blocks.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from between_hosts.emulated_hosts import Network, Ranks
from between_hosts.plain_tcp import PlainTcp
from between_hosts.team_member import PAGE_BYTES, Membership, serve

_SEED = 20
_JOB_LIMIT = 3600.0
# A machine may be busy: the first ranks wait until torch is loaded.
_START_LIMIT = 180.0


class Team:
    """The ranks of one contestant.

    Attributes:
        name: how tables call it.
        network: where its ranks are.
    """

    def __init__(
        self,
        name: str,
        ranks: Ranks,
        network: Network,
        per_host: int,
        backend: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Starts the ranks and waits for them.

        Args:
            name: how tables call it.
            ranks: the launcher.
            network: of two or more hosts.
            per_host: ranks on each.
            backend: of torch, or the name of plain TCP.
            environment: of the ranks.
        """
        self.name, self.network = name, network
        size = per_host * len(network.hosts)
        mark = f"{random.randrange(1 << 32):08x}"
        way_in, page = (ranks.directory / f"{mark}.{kind}" for kind in ("socket", "page"))
        page.write_bytes(bytes(PAGE_BYTES))
        member = Membership(backend, str(way_in), page, network.hosts[0].address())
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(str(way_in))
            door.listen(size)
            self._job = ranks.start(
                network,
                per_host,
                serve,
                member,
                backend=backend,
                init=backend != PlainTcp.name,
                timeout=_START_LIMIT,
                limit=_JOB_LIMIT,
                environment={"GLOO_SOCKET_IFNAME": "eth0", **(environment or {})},
                checks_footprint=False,
            )
            arrived = [self._await_member(door) for _ in range(size)]
        self._members = [
            link for _, link in sorted(((link.recv(), link) for link in arrived), key=_first)
        ]

    def _await_member(self, door: socket.socket) -> Connection[Any, Any]:
        deadline = time.monotonic() + _START_LIMIT
        door.settimeout(1.0)
        while True:
            try:
                return Connection(door.accept()[0].detach())
            except TimeoutError:
                if self._job.is_over():
                    self._job.wait()  # says why
                if time.monotonic() > deadline:
                    raise

    def ask(self, method: str, *arguments: object) -> list[Any]:
        """Has all ranks do something at once; returns what each answers.

        Raises:
            RanksFailed: one of them failed.
        """
        try:
            for member in self._members:
                member.send((method, arguments))
            return [member.recv() for member in self._members]
        except (EOFError, ConnectionError):
            self._job.wait()
            raise

    def sent_bytes(self) -> int:
        """Bytes that all hosts have sent until now, headers included."""
        return sum(
            host.counters(rail).sent for host in self.network.hosts for rail in self.network.rails
        )

    def close(self) -> None:
        """Ends the ranks.

        Raises:
            RanksFailed: one of them failed.
        """
        for member in self._members:
            member.close()
        self._job.wait()

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def take_turns(
    teams: Sequence[Team], rounds: int, turn: Callable[[Team], Sequence[float]]
) -> dict[str, list[list[float]]]:
    """Asks every team once a round, in an order that changes from round to round.

    Returns:
        By team, for each round what ``turn`` returned.
    """
    shuffle = random.Random(_SEED).shuffle
    order = list(teams)
    samples: dict[str, list[list[float]]] = {team.name: [] for team in teams}
    for _ in range(rounds):
        shuffle(order)
        for team in order:
            samples[team.name].append(list(turn(team)))
    return samples


def slowest(team: Team, calls: int) -> list[float]:
    """Seconds of the slowest rank in each of some calls."""
    return [max(of_one_call) for of_one_call in zip(*team.ask("time_calls", calls), strict=True)]


def merged(notes: Sequence[list[list[float]]]) -> torch.Tensor:
    """What is latest over all ranks of what each has noted."""
    return torch.tensor(notes, dtype=torch.float64).amax(dim=0)


def _first(pair: tuple[int, object]) -> int:
    return pair[0]
