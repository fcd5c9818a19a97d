"""Where the ranks' time went in some measured steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from freescale_pg.bench.noted_exchanges import Key, Wait
from freescale_pg.observe.report import StepTime


@dataclass(frozen=True)
class NotedStep:
    """One step of one rank; seconds.

    Attributes:
        begin: When it began, by the monotonic clock.
        end: When it ended.
        compute: What it computed, at full speed.
        slowed: What that took longer, because the slowdown was put in.
        waits: When the training's thread waited.
        metered: The same step by ``fs.BubbleMeter``; None: of another backend, which it can't see.
        samples: What the rank trained on, by place.
    """

    begin: float
    end: float
    compute: float
    slowed: float
    waits: tuple[Wait, ...]
    metered: StepTime | None
    samples: tuple[int, ...]


@dataclass(frozen=True)
class RankNotes:
    """The measured steps of one rank.

    Attributes:
        steps: In order.
        asked: When the rank asked for each exchange.
        processor: CPU seconds of the whole process, in all steps together.
    """

    steps: tuple[NotedStep, ...]
    asked: dict[Key, float]
    processor: float


@dataclass(frozen=True)
class RankSeconds:
    """The time of some steps, in seconds summed over all ranks.

    Attributes:
        steps: Number of steps, of all ranks together.
        elapsed: Time that passed.
        compute: What was computed, at full speed.
        slowdown: What the same took longer, because the slowdown was put in.
        stragglers: Waited for an exchange that some rank had not asked for yet.
        communication: Waited for an exchange that all ranks had asked for.
        waited: Both together, by the notes of the benchmark; the two before are of
            ``fs.BubbleMeter`` where that can see the backend.
        processor: CPU time, of all threads.
    """

    steps: int = 0
    elapsed: float = 0.0
    compute: float = 0.0
    slowdown: float = 0.0
    stragglers: float = 0.0
    communication: float = 0.0
    waited: float = 0.0
    processor: float = 0.0

    def __add__(self, other: RankSeconds) -> RankSeconds:
        return RankSeconds(
            *(getattr(self, each.name) + getattr(other, each.name) for each in fields(self))
        )

    @property
    def step_seconds(self) -> float:
        """Mean time of a step."""
        return self.elapsed / self.steps

    @property
    def bubble(self) -> float:
        """``1 - compute / (ranks · step time)``: the part of the ranks' time that is no compute."""
        return 1 - self.compute / self.elapsed

    @property
    def rest(self) -> float:
        """Look-ups, copies and late wakes: what takes time beside the stand-in for computing."""
        known = self.compute + self.slowdown + self.stragglers + self.communication
        return self.elapsed - known

    @property
    def disagreement(self) -> float:
        """By how much meter and notes differ in what was waited, as a part of the time."""
        return abs(self.stragglers + self.communication - self.waited) / self.elapsed


def seconds_of(ranks: Sequence[RankNotes]) -> RankSeconds:
    """Adds up what all ranks have noted of the same steps."""
    latest = last_asked([rank.asked for rank in ranks])
    total = RankSeconds(processor=sum(rank.processor for rank in ranks))
    for step in (step for rank in ranks for step in rank.steps):
        total += _seconds_of_step(step, latest)
    return total


def _seconds_of_step(step: NotedStep, latest: dict[Key, float]) -> RankSeconds:
    waited = sum(wait.end - wait.begin for wait in step.waits)
    if step.metered is None:
        stragglers = sum(stragglers_part(wait, latest) for wait in step.waits)
        communication = waited - stragglers
    else:
        stragglers = step.metered.stragglers_ns / 1e9
        communication = step.metered.communication_ns / 1e9
    elapsed = step.end - step.begin
    return RankSeconds(
        1, elapsed, step.compute, step.slowed, stragglers, communication, waited, 0.0
    )


def last_asked(of_ranks: Sequence[Mapping[Key, float]]) -> dict[Key, float]:
    """Returns when the last rank asked for each exchange."""
    latest: dict[Key, float] = {}
    for asked in of_ranks:
        for key, moment in asked.items():
            latest[key] = max(latest.get(key, moment), moment)
    return latest


def stragglers_part(wait: Wait, latest: Mapping[Key, float]) -> float:
    """Returns the seconds of a wait that passed before the last rank asked for the exchange.

    Raises:
        ValueError: It is not known what was waited for.
    """
    if wait.key is None:
        raise ValueError("a wait for another thread has no exchange of its own")
    return min(max(latest[wait.key] - wait.begin, 0.0), wait.end - wait.begin)


def global_batches(ranks: Sequence[RankNotes]) -> list[list[int]]:
    """Returns the samples that all ranks together trained on in each step, sorted."""
    return [
        sorted(_chained(step.samples for step in steps))
        for steps in zip(*(rank.steps for rank in ranks), strict=True)
    ]


def _chained(samples: Iterable[tuple[int, ...]]) -> list[int]:
    return [each for of_rank in samples for each in of_rank]


def gone(time: RankSeconds, baseline: RankSeconds) -> float:
    """Returns the part of the baseline's bubbles that another has not: 1 - its bubble / that one's.

    0 where the baseline has none.
    """
    return 1 - time.bubble / baseline.bubble if baseline.bubble > 0 else 0.0
