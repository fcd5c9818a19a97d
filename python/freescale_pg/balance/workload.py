"""What a sampler deals out, in few numbers: enough to simulate the same training elsewhere."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from freescale_pg.balance.cost import CostModel
from freescale_pg.balance.lengths import LengthColumn

# So many lengths, evenly spaced in their order, have the mean of a heavy-tailed column (2²⁰ lengths
# of Zipf 1.2, cut at 4096 tokens) within 0.001 %.
_KEPT = 4096


@dataclass(frozen=True)
class Workload:
    """The samples of a training.

    Attributes:
        samples_per_rank: In each step.
        lengths: Quantiles of the data set's lengths, evenly spaced and ascending, up to 4096 of
            them; of longer columns, of the places that the sampler compares. float64, shape
            ``[quantiles]``.
        cost_model: From lengths to costs.
    """

    samples_per_rank: int
    lengths: npt.NDArray[np.float64]
    cost_model: CostModel


def quantiles(column: LengthColumn) -> npt.NDArray[np.float64]:
    """Returns up to 4096 lengths of a column, evenly spaced in their order; float64, ascending."""
    values = np.sort(column.gather(column.sample()))
    if len(values) <= _KEPT:
        return values
    # The middles of equal parts.
    places = ((np.arange(_KEPT) + 0.5) * len(values) / _KEPT).astype(np.int64)
    return values[places]
