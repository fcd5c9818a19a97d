"""What freescale reaches between hosts, beside gloo and plain TCP, on hosts emulated here.

    python benchmarks/multihost.py                               # everything: minutes
    python benchmarks/multihost.py --sections exchange,priority --rounds 30
    python benchmarks/multihost.py --rate 10000000000 --sections rails

Hosts are network namespaces (``tests/multihost``), so this needs root, util-linux and iproute2.
They are connected without a limit (*free*: this machine's own speed, as all hosts share its cores),
or with one of ``--rate`` bits per second for each host and direction, by token buckets that let
0.5 ms of bytes pass at once and hold back 5 ms of them. TCP's congestion control is Reno on all
hosts, as a namespace may always have it, and on a link that loses nothing it does what CUBIC does,
the default of most kernels. ``--congestion bbr`` paces, and that changes the order of contestants.

Each contestant has ranks of its own; all are there during a section and take turns in a shuffled
order in every round, so that other load on the machine hits all alike. A *time* is from the moment
a rank enters the call (all leave a spin barrier together, after a call that is not timed) until it
returns; of the ranks the slowest counts. Medians over the rounds are printed, and ratios of
medians with the quartiles of the rounds' own ratios.

* *exchange*: all_to_all_single of 2 ranks; *plain TCP* sends the same bytes both ways at once over
  one connection and copies no own part (``between_hosts/plain_tcp.py``). Sizes are bytes of a
  rank's input. *CPU ms* are those of one call on a rank, user and system, in the order of the
  times.
* *latency*: the same, small.
* *pieces*: all_to_all_single of 4 ranks on each host, by the bytes that each sends to each.
* *gather*: all_gather_into_tensor of those ranks; bytes that the hosts' interfaces count, headers
  included, over those of crossing once to each other host.
* *priority*: an urgent exchange while a background one of another group is in flight. The bulk's
  *loss* is how much longer it takes beside urgent calls than alone, and *of the wire* what is left
  of that when it is granted the time that the urgent bytes take at its own speed.
* *idle*: CPU time of a rank that has a group and does nothing.
* *rails*: an exchange over two interfaces of each host, and over one of them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from between_hosts.emulated_hosts import Network, Ranks, missing
from between_hosts.plain_tcp import PlainTcp
from between_hosts.teams import Team, merged, slowest, take_turns
from freescale_pg.bench.arguments import names_among
from freescale_pg.bench.results import CANDIDATE
from freescale_pg.bench.table import markdown, microseconds_text, parse_size, ratio_text, size_text
from targets import BETWEEN_HOSTS, Bound

_KIB, _MIB = 1 << 10, 1 << 20
_HOSTS = 2
_RATE = 2_000_000_000
_BURST, _BACKLOG = 0.0005, 0.005
_LARGE = [size * _MIB for size in (1, 4, 16, 64)]
_SMALL = [8, 256, 4 * _KIB]
_PIECES = [256, _KIB, 2 * _KIB, 4 * _KIB, 8 * _KIB]
_GATHERED = [64 * _KIB, _MIB, 4 * _MIB]
_RAILED = [16 * _MIB, 64 * _MIB]
_CALLS_OF_SMALL = 20
_GATHERS = 10
_CALLS_FOR_CPU = 4
_MANY_PER_HOST = 4
_IDLE_SECONDS = 10.0
_URGENT_TICKS = 5


@dataclass(frozen=True)
class Way:
    """A contestant: a backend, and the environment that makes it work in one way.

    Attributes:
        name: how tables call it.
        backend: of torch, or the name of plain TCP.
        environment: of its ranks.
    """

    name: str
    backend: str
    environment: Mapping[str, str]


_FREESCALE = Way(CANDIDATE, CANDIDATE, {})
_GLOO = Way("gloo", "gloo", {})
_TCP = Way(PlainTcp.name, PlainTcp.name, {})
# Of small pieces.
_GATHERED_BY_HOST = Way("gathered by host", CANDIDATE, {"FREESCALE_AGGREGATE_BYTES": str(8 * _KIB)})
_WAYS_OF_PIECES = (_FREESCALE, _GATHERED_BY_HOST, _GLOO)
_WAYS_OF_RAILS = (
    Way("two rails", CANDIDATE, {"FREESCALE_IFNAME": "eth0,eth1"}),
    Way("one rail", CANDIDATE, {"FREESCALE_IFNAME": "eth0"}),
)


@dataclass(frozen=True)
class Lab:
    """Where teams are put.

    Attributes:
        ranks: the launcher.
        options: of the command line.
    """

    ranks: Ranks
    options: argparse.Namespace

    @contextmanager
    def teams(
        self, ways: Sequence[Way], per_host: int, *, limited: bool, rails: int = 1
    ) -> Iterator[list[Team]]:
        """Makes hosts and starts the teams on them."""
        rate = self.options.rate if limited else None
        with ExitStack() as stack:
            network = stack.enter_context(
                Network(
                    _HOSTS,
                    rails=rails,
                    rate=rate,
                    burst=_BURST,
                    backlog=_BACKLOG,
                    congestion=self.options.congestion,
                    folders=[self.ranks.directory],
                )
            )
            yield [
                stack.enter_context(
                    Team(way.name, self.ranks, network, per_host, way.backend, way.environment)
                )
                for way in ways
            ]

    def link(self, limited: bool) -> str:
        """What tables call the network."""
        return f"{self.options.rate / 1e9:g} Gbit/s" if limited else "free"


class Samples:
    """Seconds of several contestants in one cell, by round."""

    def __init__(self, by_round: Mapping[str, list[list[float]]]) -> None:
        self._by_round = by_round

    def median(self, name: str) -> float:
        """Of all calls."""
        return statistics.median(value for turn in self._by_round[name] for value in turn)

    def ratio(self, name: str, over: str) -> float:
        """Of the medians."""
        return self.median(name) / self.median(over)

    def ratio_text(self, name: str, over: str) -> str:
        """The ratio of the medians and the quartiles of the rounds' ratios."""
        pairs = zip(self._by_round[name], self._by_round[over], strict=True)
        ratios = [statistics.median(mine) / statistics.median(other) for mine, other in pairs]
        low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return f"{ratio_text(self.ratio(name, over))} ({ratio_text(low)}–{ratio_text(high)})"

    def time_text(self, name: str) -> str:
        """The median in microseconds."""
        return microseconds_text(self.median(name) * 1e6)


def verdict(name: str, value: float) -> str:
    """The target of that name held against the value."""
    bound: Bound = BETWEEN_HOSTS[name]
    return f"{'met' if bound.is_met_by(value) else 'MISSED'} {bound}"


def timed(teams: Sequence[Team], op: str, size: int, rounds: int) -> Samples:
    """Prepares a cell on all teams and lets them take turns."""
    for team in teams:
        team.ask("prepare", op, size)
    calls = 1 if size >= _MIB else _CALLS_OF_SMALL
    samples = Samples(take_turns(teams, rounds, partial(slowest, calls=calls)))
    said = ", ".join(f"{team.name} {samples.time_text(team.name)}" for team in teams)
    print(f"{op} {size_text(size)}: {said} µs", file=sys.stderr, flush=True)
    return samples


def exchange(lab: Lab) -> str:
    """Large exchanges between two ranks."""
    header = ["link", "size", "freescale µs", "gloo µs", "plain TCP µs"]
    header += ["plain TCP / freescale", "gloo / freescale", "CPU ms", "targets"]
    rows = []
    for limited in (False, True):
        with lab.teams((_FREESCALE, _GLOO, _TCP), 1, limited=limited) as teams:
            for size in _LARGE:
                samples = timed(teams, "all_to_all_single", size, lab.options.rounds)
                *cells, targets = _exchange_row(samples, limited)
                cpu = " / ".join(_cpu_text(team) for team in teams)
                rows.append([lab.link(limited), size_text(size), *cells, cpu, targets])
    return markdown(header, rows)


def _exchange_row(samples: Samples, limited: bool) -> list[str]:
    of_tcp, of_gloo = (samples.ratio(other, CANDIDATE) for other in (PlainTcp.name, "gloo"))
    verdicts = [verdict("limited exchange over TCP" if limited else "exchange over TCP", of_tcp)]
    if not limited:
        verdicts.append(verdict("exchange over gloo", of_gloo))
    times = [samples.time_text(name) for name in (CANDIDATE, "gloo", PlainTcp.name)]
    ratios = [samples.ratio_text(other, CANDIDATE) for other in (PlainTcp.name, "gloo")]
    return [*times, *ratios, "; ".join(verdicts)]


def _cpu_text(team: Team) -> str:
    seconds = team.ask("cpu_of_a_call", _CALLS_FOR_CPU)
    return f"{sum(seconds) / len(seconds) * 1e3:.2f}"


def latency(lab: Lab) -> str:
    """Small exchanges between two ranks."""
    header = ["link", "size", "freescale µs", "gloo µs", "freescale / gloo", "target"]
    rows = []
    for limited in (False, True):
        with lab.teams((_FREESCALE, _GLOO), 1, limited=limited) as teams:
            for size in _SMALL:
                samples = timed(teams, "all_to_all_single", size, lab.options.rounds)
                times = [samples.time_text(name) for name in (CANDIDATE, "gloo")]
                ratio = samples.ratio_text(CANDIDATE, "gloo")
                target = verdict("latency over gloo", samples.ratio(CANDIDATE, "gloo"))
                rows.append([lab.link(limited), size_text(size), *times, ratio, target])
    return markdown(header, rows)


def pieces(lab: Lab) -> str:
    """Exchanges of small pieces between many ranks."""
    names = [way.name for way in _WAYS_OF_PIECES]
    others = [name for name in names if name != CANDIDATE]
    header = ["link", "piece", *(f"{name} µs" for name in names)]
    header += [f"freescale / {name}" for name in others] + ["target"]
    rows = []
    for limited in (False, True):
        with lab.teams(_WAYS_OF_PIECES, _MANY_PER_HOST, limited=limited) as teams:
            for piece in _PIECES:
                size = piece * _HOSTS * _MANY_PER_HOST
                samples = timed(teams, "all_to_all_single", size, lab.options.rounds)
                times = [samples.time_text(name) for name in names]
                ratios = [samples.ratio_text(CANDIDATE, name) for name in others]
                gain = samples.ratio(CANDIDATE, _GATHERED_BY_HOST.name)
                target = verdict("gathered over direct", gain)
                rows.append([lab.link(limited), size_text(piece), *times, *ratios, target])
    return markdown(header, rows)


def gather(lab: Lab) -> str:
    """Bytes on the wire of an all_gather between many ranks."""
    header = ["piece", "backend", "time µs", "MB on the wire", "least MB", "ratio", "target"]
    rows = []
    with lab.teams((_FREESCALE, _GLOO), _MANY_PER_HOST, limited=True) as teams:
        for size in _GATHERED:
            samples = timed(teams, "all_gather_into_tensor", size, lab.options.rounds)
            for team in teams:
                sent = _bytes_of_a_call(team)
                least = size * _HOSTS * _MANY_PER_HOST * (_HOSTS - 1)
                target = verdict("bytes of a gather", sent / least)
                numbers = [samples.time_text(team.name), f"{sent / 1e6:.2f}", f"{least / 1e6:.2f}"]
                is_ours = team.name == CANDIDATE
                numbers += [f"{sent / least:.3f}", target if is_ours else "–"]
                rows.append([size_text(size), team.name, *numbers])
    return markdown(header, rows)


def _bytes_of_a_call(team: Team) -> float:
    before = team.sent_bytes()
    team.ask("call", _GATHERS)
    return (team.sent_bytes() - before) / _GATHERS


def priority(lab: Lab) -> str:
    """An urgent exchange beside a bulk one."""
    header = ["urgent idle µs", "beside bulk µs", "ratio", "bulk alone ms", "beside urgent ms"]
    header += ["loss", "of the wire", "calls beside/missed", "targets"]
    with lab.teams((_FREESCALE,), 1, limited=True) as (team,):
        team.ask("prepare_priorities", lab.options.urgent, lab.options.bulk)
        trials = UrgentTrials(team, lab.options)
        for _ in range(lab.options.trials):
            trials.run()
    return markdown(header, [trials.row()])


class UrgentTrials:
    """What urgent and bulk exchanges took, alone and beside each other."""

    def __init__(self, team: Team, options: argparse.Namespace) -> None:
        self._team, self._options = team, options
        # Ticks that a bulk exchange outlasts.
        seconds = options.bulk / 2 * 8 / options.rate
        self._interval = 0.8 * seconds / _URGENT_TICKS
        self._idle: list[float] = []
        self._loaded: list[float] = []
        self._alone: list[float] = []
        self._beside: list[float] = []
        self._missed = 0

    def run(self) -> None:
        """One of each, in turn."""
        self._idle += self._measure(urgent=True, bulk=False)[0]
        self._alone.append(self._measure(urgent=False, bulk=True)[1])
        spans, seconds = self._measure(urgent=True, bulk=True)
        self._loaded += spans
        self._missed += _URGENT_TICKS - len(spans)
        self._beside.append(seconds)
        print(f"urgent beside bulk: {seconds:.3f} s", file=sys.stderr, flush=True)

    def _measure(self, urgent: bool, bulk: bool) -> tuple[list[float], float]:
        answers = self._team.ask("beside_bulk", _URGENT_TICKS, self._interval, urgent, bulk)
        latest = merged([notes for notes, _ in answers])
        spans = (latest[:, 1] - latest[:, 0])[latest[:, 2] == 0]
        return spans.tolist(), max(seconds for _, seconds in answers)

    def row(self) -> list[str]:
        """Of the table."""
        idle, loaded = statistics.median(self._idle), statistics.median(self._loaded)
        alone, beside = statistics.median(self._alone), statistics.median(self._beside)
        more_bytes = 1 + _URGENT_TICKS * self._options.urgent / self._options.bulk
        loss = beside / alone / more_bytes - 1
        times = [microseconds_text(idle * 1e6), microseconds_text(loaded * 1e6)]
        times += [f"{ratio_text(loaded / idle)} ({self._spread(idle)})"]
        times += [f"{alone * 1e3:.0f}", f"{beside * 1e3:.0f}"]
        losses = [f"{beside / alone - 1:+.1%}", f"{loss:+.1%}"]
        counts = f"{len(self._loaded)}/{self._missed}"
        targets = f"{verdict('urgent slowdown', loaded / idle)}; {verdict('bulk loss', loss)}"
        return [*times, *losses, counts, targets]

    def _spread(self, idle: float) -> str:
        low, _, high = statistics.quantiles(self._loaded, n=4, method="inclusive")
        return f"{ratio_text(low / idle)}–{ratio_text(high / idle)}"


def idle(lab: Lab) -> str:
    """CPU time of ranks that do nothing."""
    rows = []
    with lab.teams((_FREESCALE, _GLOO), 1, limited=False) as teams:
        for team in teams:
            team.ask("prepare", "all_to_all_single", _MIB)
            cpu = max(team.ask("idle", _IDLE_SECONDS))
            target = verdict("idle", cpu) if team.name == CANDIDATE else "–"
            rows.append([team.name, f"{_IDLE_SECONDS:g}", f"{cpu:.4f}", target])
    return markdown(["backend", "idle s", "CPU s", "target"], rows)


def rails(lab: Lab) -> str:
    """One exchange over two interfaces and over one."""
    header = ["size", "two rails µs", "one rail µs", "one / two", "target"]
    rows = []
    with lab.teams(_WAYS_OF_RAILS, 1, limited=True, rails=2) as teams:
        for size in _RAILED:
            samples = timed(teams, "all_to_all_single", size, lab.options.rounds)
            two, one = (way.name for way in _WAYS_OF_RAILS)
            times = [samples.time_text(two), samples.time_text(one)]
            target = verdict("two rails", samples.ratio(one, two))
            rows.append([size_text(size), *times, samples.ratio_text(one, two), target])
    return markdown(header, rows)


_SECTIONS: dict[str, tuple[str, Callable[[Lab], str]]] = {
    "exchange": ("all_to_all_single, 2 hosts of 1 rank", exchange),
    "latency": ("Small all_to_all_single, 2 hosts of 1 rank", latency),
    "pieces": ("all_to_all_single of small pieces, 2 hosts of 4 ranks", pieces),
    "gather": ("all_gather_into_tensor, 2 hosts of 4 ranks", gather),
    "priority": ("Urgent beside bulk, 2 hosts of 1 rank", priority),
    "idle": ("Idle, 2 hosts of 1 rank", idle),
    "rails": ("Rails, 2 hosts of 1 rank", rails),
}


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sections", type=names_among(_SECTIONS), default=list(_SECTIONS))
    parser.add_argument("--rounds", type=int, default=15, help="of each cell")
    parser.add_argument("--rate", type=int, default=_RATE, help="bits per second of a link")
    parser.add_argument("--congestion", default="reno", help="control of TCP's, on the hosts")
    parser.add_argument("--urgent", type=parse_size, default="4MiB", help="bytes")
    parser.add_argument("--bulk", type=parse_size, default="1024MiB", help="bytes")
    parser.add_argument("--trials", type=int, default=8, help="of urgent beside bulk")
    return parser.parse_args()


def main() -> None:
    """Goes through the sections and prints each as soon as it is there."""
    options = parse_arguments()
    reason = missing()
    if reason is not None:
        raise SystemExit(reason)
    get_context("forkserver").set_forkserver_preload(["torch", "torch.distributed"])
    with tempfile.TemporaryDirectory(prefix="freescale-bench-") as directory:
        lab = Lab(Ranks(CANDIDATE, Path(directory)), options)
        for name in options.sections:
            title, section = _SECTIONS[name]
            print(f"{title}\n\n{section(lab)}\n", flush=True)


if __name__ == "__main__":
    main()
