"""The same training simulated on more ranks than it ran on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from freescale_pg.report.run import Run, Workload
from freescale_pg.report.units import duration
from freescale_pg.simulate.modes import Mode, gone, simulate
from freescale_pg.simulate.scenario import Scenario, StepCost

# World sizes that are simulated.
RANKS = (8, 64, 512, 4096)
_NANOSECONDS = 1e9


@dataclass(frozen=True, slots=True)
class ModePoint:
    """One way of training, on so many ranks; parts of the ranks' time.

    Attributes:
        mode: What is done against bubbles.
        step_seconds: Mean time of a step.
        bubble: The sum of the following.
        stragglers: Waiting for other ranks.
        communication: Waiting for bytes.
        slowdown: Computing more slowly beside communication kernels.
        gone: Part of the first mode's bubble that is gone.
    """

    mode: Mode
    step_seconds: float
    bubble: float
    stragglers: float
    communication: float
    slowdown: float
    gone: float


@dataclass(frozen=True)
class Scaling:
    """A training, simulated on several numbers of ranks.

    Attributes:
        points: All modes, by number of ranks.
        basis: What the samples and their costs were taken from, for people.
        scenario: On the most ranks.
    """

    points: dict[int, tuple[ModePoint, ...]]
    basis: str
    scenario: Scenario


@dataclass(frozen=True)
class Source:
    """What a simulation takes from a run.

    Attributes:
        workload: Whose lengths and samples per rank; None: none.
        cost: Of its samples; None: none.
        text: What is taken from where, for people.
    """

    workload: Workload | None
    cost: StepCost | None
    text: str

    def apply(self, scenario: Scenario) -> Scenario:
        """Returns a scenario with what is the run's in the place of its own.

        Raises:
            ValueError: The lengths are no numbers of tokens.
        """
        if self.cost is not None:
            scenario = replace(scenario, cost=self.cost)
        return scenario if self.workload is None else _with_lengths(scenario, self.workload)


def source_of(run: Run, *, has_lengths: bool = True, has_cost: bool = True) -> Source:
    """Finds what a simulation can take from a run.

    Args:
        run: Which.
        has_lengths: Whether to take its lengths, if there are some.
        has_cost: Whether to take its cost.
    """
    workload = run.workload if has_lengths else None
    compute = _compute_seconds(run)
    known = run.workload if has_cost else None
    cost = None if known is None or compute is None else _step_cost(known, compute)
    said = (
        "Lengths are those of freescale simulate."
        if workload is None
        else f"Samples are as long as this run's, {workload.samples_per_rank} on each rank."
    )
    if cost is None or compute is None:
        return Source(workload, cost, f"{said} Costs are those of freescale simulate.")
    return Source(
        workload,
        cost,
        f"{said} They cost what a rank computed here, {duration(_NANOSECONDS * compute)} a step,"
        " all of which is taken to grow with the samples: so stragglers are at their worst.",
    )


def simulate_scaling(
    scenario_at: Callable[[int], Scenario], source: Source, ranks: Sequence[int] = RANKS
) -> Scaling:
    """Simulates a training in all modes.

    Args:
        scenario_at: Returns it for a number of ranks, but for what the source has.
        source: What is taken from a run.
        ranks: How many.

    Raises:
        ValueError: It cannot be simulated on so many ranks.
        ImportError: There is no torch.
    """
    scenarios = {count: source.apply(scenario_at(count)) for count in ranks}
    points = {count: _points(scenario) for count, scenario in scenarios.items()}
    return Scaling(points, source.text, scenarios[max(ranks)])


def _points(scenario: Scenario) -> tuple[ModePoint, ...]:
    outcomes = simulate(scenario)
    return tuple(
        ModePoint(
            mode=outcome.mode,
            step_seconds=outcome.time.step_seconds,
            bubble=outcome.time.bubble,
            stragglers=outcome.time.straggler / outcome.time.elapsed,
            communication=outcome.time.communication / outcome.time.elapsed,
            slowdown=outcome.time.slowdown / outcome.time.elapsed,
            gone=gone(outcome, outcomes),
        )
        for outcome in outcomes
    )


def _compute_seconds(run: Run) -> float | None:
    """What a step computed on a rank, on average, without the first of several; None: no steps."""
    times = [
        step.time.compute_ns for rank in run.ranks.values() for step in rank.steps[1:] or rank.steps
    ]
    return float(np.mean(times)) / _NANOSECONDS if times else None


def _step_cost(workload: Workload, compute: float) -> StepCost | None:
    """What samples cost if all that a step computes is theirs; None: they cost nothing."""
    lengths = workload.lengths
    costs = workload.token_cost * lengths + workload.pair_cost * lengths * lengths
    of_step = float(costs.mean()) * workload.samples_per_rank
    if not (of_step > 0 and compute > 0):
        return None
    unit = compute / of_step
    return StepCost(workload.token_cost * unit, workload.pair_cost * unit)


def _with_lengths(scenario: Scenario, workload: Workload) -> Scenario:
    """A scenario whose samples are the run's: each length as often as the others."""
    lengths = workload.lengths
    if not ((lengths == np.rint(lengths)) & (lengths >= 0)).all():
        raise ValueError("the run's sampler was given costs and no lengths: numbers of tokens")
    needed = scenario.cluster.ranks * workload.samples_per_rank
    repeated: npt.NDArray[np.int64] = np.tile(lengths.astype(np.int64), -(-needed // len(lengths)))
    return replace(scenario, lengths=repeated, samples_per_rank=workload.samples_per_rank)
