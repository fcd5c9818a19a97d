"""Where the ranks' time went."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from freescale_pg.simulate.schedule import Traffic

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Breakdown:
    """The time of some steps, in seconds summed over all ranks.

    ``elapsed = compute + slowdown + straggler + Σ exposed``, to rounding.

    Attributes:
        ranks: World size.
        steps: How many.
        elapsed: Time that passed, of all ranks together.
        compute: What they computed, in the time it takes when nothing slows it down.
        slowdown: What the same took longer because communication kernels ran beside it.
        straggler: Waited for an exchange that some rank had not asked for yet.
        exposed: Waited for an exchange that all ranks had asked for, by what it carries.
    """

    ranks: int
    steps: int
    elapsed: float
    compute: float
    slowdown: float
    straggler: float
    exposed: Mapping[Traffic, float]

    @property
    def step_seconds(self) -> float:
        """Mean time of a step."""
        return self.elapsed / (self.ranks * self.steps)

    @property
    def bubble(self) -> float:
        """``1 - compute / (ranks · step time)``: the part of the ranks' time that is no compute.

        Only compute at full speed is compute: what communication kernels slow it down by counts as
        bubble.
        """
        return 1.0 - self.compute / self.elapsed if self.elapsed > 0 else 0.0

    @property
    def communication(self) -> float:
        """All that was exposed."""
        return sum(self.exposed.values())


@dataclass
class Ledger:
    """Takes down what the time of each rank went to; arrays have shape ``[W]``."""

    ranks: int
    compute: FloatArray = field(init=False)
    slowdown: FloatArray = field(init=False)
    straggler: FloatArray = field(init=False)
    exposed: dict[Traffic, FloatArray] = field(init=False)

    def __post_init__(self) -> None:
        self.compute, self.slowdown, self.straggler = np.zeros((3, self.ranks))
        self.exposed = {traffic: np.zeros(self.ranks) for traffic in Traffic}

    def clear(self, ranks: slice = slice(None)) -> None:
        """Forgets all about some ranks, as at the end of their warm-up."""
        for column in (self.compute, self.slowdown, self.straggler, *self.exposed.values()):
            column[ranks] = 0.0

    def waited(
        self, traffic: Traffic, since: FloatArray, asked: float, until: FloatArray, ranks: slice
    ) -> None:
        """Books a wait for an exchange.

        Args:
            traffic: What it carries.
            since: When each of the ranks began to wait.
            asked: When the last rank had asked for it.
            until: When it was over on each of the ranks.
            ranks: Which ones.
        """
        whole = np.maximum(until - since, 0.0)
        straggler = np.clip(asked - since, 0.0, whole)
        self.straggler[ranks] += straggler
        self.exposed[traffic][ranks] += whole - straggler

    def total(self, steps: int, elapsed: FloatArray) -> Breakdown:
        """Returns the sums.

        Args:
            steps: Number of steps since the last :meth:`clear`.
            elapsed: Time of each rank since then.
        """
        return Breakdown(
            self.ranks,
            steps,
            float(elapsed.sum()),
            float(self.compute.sum()),
            float(self.slowdown.sum()),
            float(self.straggler.sum()),
            {traffic: float(waited.sum()) for traffic, waited in self.exposed.items()},
        )
