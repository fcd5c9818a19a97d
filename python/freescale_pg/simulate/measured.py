"""Measured steps, of which a cost model is made."""

import json
from pathlib import Path

from freescale_pg.simulate.scenario import StepCost


def fit_measured(path: Path) -> StepCost:
    """Fits the cost of a step to measured ones; see :func:`freescale_pg.balance.fit_cost`.

    Args:
        path: JSON, ``{"lengths": [[tokens of each sample], …], "seconds": [of each step, …]}``.

    Raises:
        OSError: It cannot be read.
        ValueError: It holds something else, or no model can be fitted to it; names the file.
    """
    # Not at the top: it needs torch, which takes seconds to load.
    from freescale_pg.balance.fit import fit_cost

    try:
        held = json.loads(path.read_text())
        fit = fit_cost(held["lengths"], held["seconds"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} does not hold measured steps: {error!r}") from error
    return StepCost(fit.model.a, fit.model.b, fit.constant)
