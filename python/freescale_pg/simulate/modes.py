"""One training in four ways, each with one technique more."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from freescale_pg.simulate.breakdown import Breakdown
from freescale_pg.simulate.fluid import FluidSimulation
from freescale_pg.simulate.link_by_link import LinkByLinkSimulation
from freescale_pg.simulate.regime import Regime
from freescale_pg.simulate.scenario import Scenario
from freescale_pg.simulate.schedule import ids_ahead, overlapped


class Mode(Enum):
    """What is done against bubbles; each mode does what the ones before it do, too."""

    BASELINE = "baseline"
    BALANCE = "+ balance"
    OVERLAP = "+ prioritised overlap"
    SM_FREE = "+ SM-free"


@dataclass(frozen=True)
class Outcome:
    """A mode, simulated.

    Attributes:
        mode: Which.
        time: Where it went.
        starved: Exchanges that the scheduler would have let climb; see :class:`FluidLinks`.
    """

    mode: Mode
    time: Breakdown
    starved: int


def simulate(scenario: Scenario, *, link_by_link: bool = False) -> list[Outcome]:
    """Simulates all modes of a training.

    Args:
        scenario: The training.
        link_by_link: Whether to follow each chunk on each link, which takes long.
    """
    in_turn, balanced = scenario.dealt
    plain = Regime(ids_ahead, is_prioritised=False, slowdown=scenario.slowdown)
    prioritised = Regime(overlapped, is_prioritised=True, slowdown=scenario.slowdown)
    outcomes = []
    for mode, loads, regime in (
        (Mode.BASELINE, in_turn, plain),
        (Mode.BALANCE, balanced, plain),
        (Mode.OVERLAP, balanced, prioritised),
        (Mode.SM_FREE, balanced, Regime(overlapped, is_prioritised=True)),
    ):
        if link_by_link:
            time = LinkByLinkSimulation(scenario.cluster, loads, regime).run(scenario.warm_up)
            outcomes.append(Outcome(mode, time, 0))
            continue
        simulation = FluidSimulation(scenario.cluster, loads, regime)
        outcomes.append(Outcome(mode, simulation.run(scenario.warm_up), simulation.starved))
    return outcomes


def gone(outcome: Outcome, outcomes: Sequence[Outcome]) -> float:
    """Returns the part of the first mode's bubbles that another has not: 1 - its bubble / first's.

    0 where the first has none.
    """
    first = outcomes[0].time.bubble
    return 1 - outcome.time.bubble / first if first > 0 else 0.0
