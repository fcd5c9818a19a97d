"""A training that is simulated: its data, its model and its machine."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from freescale_pg.simulate.cluster import Cluster
from freescale_pg.simulate.load import Loads, Sizes, StepLoad
from freescale_pg.simulate.schedule import Stage

# Of what depends on lengths: a backward takes twice a forward.
_FORWARD, _BACKWARD = 1 / 3, 2 / 3


@dataclass(frozen=True)
class StepCost:
    """What a step costs a rank, in seconds; as ``freescale_pg.balance.fit_cost`` finds it.

    Attributes:
        token: Of each token.
        pair: Of each sample, over the square of its length.
        constant: Of each step; counted as its optimizer.
    """

    token: float
    pair: float
    constant: float = 0.0

    def __post_init__(self) -> None:
        for name in ("token", "pair", "constant"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"seconds per {name} must be finite and not negative, got {value}")
        if self.token == self.pair == 0:
            raise ValueError("samples cost nothing: seconds per token and per pair are both 0")


@dataclass(frozen=True)
class Scenario:
    """All that a simulation needs to know.

    Attributes:
        cluster: The machine.
        sizes: What the model moves.
        cost: What it computes.
        lengths: Of the data set's samples, in tokens; int64.
        samples_per_rank: In each step.
        shared: Part of a batch's rows that the batch before had too, 0 to 1.
        distinct: Rows that a rank looks up, as a part of its tokens, 0 to 1.
        slowdown: By what part computing takes longer while communication kernels run.
        steps: How many are counted.
        warm_up: How many go before them.
        seed: Of the order of the samples.

    Raises:
        ValueError: A number is out of range.
    """

    cluster: Cluster
    sizes: Sizes
    cost: StepCost
    lengths: npt.NDArray[np.int64]
    samples_per_rank: int
    shared: float
    distinct: float
    slowdown: float
    steps: int
    warm_up: int
    seed: int

    def __post_init__(self) -> None:
        for name in ("shared", "distinct"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be between 0 and 1, got {getattr(self, name)}")
        for name, least in (("samples_per_rank", 1), ("steps", 1), ("warm_up", 0), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be {least} or more, got {getattr(self, name)}")

    @cached_property
    def dealt(self) -> tuple[Loads, Loads]:
        """The loads of all steps: dealt in turn, and balanced."""
        # Not at the top: it needs torch, which takes seconds to load.
        from freescale_pg.balance.cost import Quadratic
        from freescale_pg.simulate.deal import Share, deal

        def load(share: Share) -> StepLoad:
            rows = share.tokens * self.distinct
            seconds = {
                Stage.FORWARD: share.cost * _FORWARD,
                Stage.BACKWARD: share.cost * _BACKWARD,
                Stage.OPTIMIZER: np.full(self.cluster.ranks, self.cost.constant),
            }
            return StepLoad(rows, self.shared * rows, self.shared * rows, seconds)

        model = Quadratic(self.cost.token, self.cost.pair)
        batches = [
            (load(batch.in_turn), load(batch.balanced))
            for batch in deal(
                self.lengths,
                self.cluster.ranks,
                self.samples_per_rank,
                model,
                self.warm_up + self.steps,
                self.seed,
            )
        ]
        in_turn, balanced = zip(*batches, strict=True)
        return Loads(self.sizes, in_turn), Loads(self.sizes, balanced)
