"""Finds a cost model from measured step times."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from freescale_pg.balance.cost import FloatArray, Quadratic

_FEWEST_STEPS = 4
# What steps must differ by, as a part of their size, to tell the three terms apart.
_LEAST_VARIATION = 1e-6
# Tuning constants with 95 % efficiency on normal errors (Huber 1964; Beaton and Tukey 1974).
_HUBER = 1.345
_BISQUARE = 4.685
# The standard deviation of normal errors over their median absolute value.
_SIGMA_PER_MEDIAN = 1.4826
_ROUNDS = 50


@dataclass(frozen=True)
class CostFit:
    """A cost model and how well it describes the measured steps.

    Attributes:
        model: To be given to ``BalancedBatchSampler(cost_model=)``; a sample's cost in seconds.
        constant: Seconds of a step that do not depend on lengths. Balancing cannot change them.
        explained: Part of the variance of the step times that the model explains, outliers left
            out (R²): 1 is a perfect fit; of less than about 0.9, something else than lengths
            decides how long a step takes.
        typical_error: Median of the relative errors of all steps.
        outliers: Number of steps so far off that they had no influence.
        steps: Number of measured steps.
    """

    model: Quadratic
    constant: float
    explained: float
    typical_error: float
    outliers: int
    steps: int

    def __str__(self) -> str:
        """For example ``1.2e-06·L + 3e-10·L² + 0.01 s a step; explains 99 % …``."""
        return (
            f"{self.model.a:.3g}·L + {self.model.b:.3g}·L² s a sample and {self.constant:.3g} s a"
            f" step; explains {self.explained:.1%} of the variance of {self.steps} steps, typical"
            f" error {self.typical_error:.1%}, {self.outliers} outliers"
        )


def fit_cost(lengths: Sequence[npt.ArrayLike], seconds: npt.ArrayLike) -> CostFit:
    """Fits ``seconds ≈ Σ (a·L + b·L²) + c`` over the samples of each step.

    Measure steps of one rank without the time that it waits for others: forward and backward
    before the first collective, or all of it with one rank. Some dozen steps are enough if their
    lengths differ. Steps that took unusually long (a first compilation, a busy machine) do no harm:
    the fit is by iteratively reweighted least squares, first with Huber's weights, then with
    Tukey's bisquare, and with coefficients that are not negative. Fit on one rank and broadcast the
    result: all ranks must balance by the same costs.

    Args:
        lengths: Of the samples of each measured step: one array per step, or one number for steps
            of a single sample.
        seconds: Time of each step, shape ``[steps]``.

    Raises:
        ValueError: Sizes differ, values are negative or not finite, there are fewer than four
            steps, their lengths are too alike to tell the terms apart, or times do not grow with
            lengths.

    Example:
        >>> fit = fit_cost([[10, 250], [900, 30], [80, 90], [400, 410]], [0.2, 0.9, 0.15, 0.6])
        >>> sampler = BalancedBatchSampler(lengths, 128, cost_model=fit.model)
    """
    times = np.asarray(seconds, dtype=np.float64)
    design = _design(lengths, times)
    coefficients, weights = _robust_fit(design, times)
    a, b, constant = coefficients.tolist()
    if a == 0 and b == 0:
        raise ValueError("the measured times do not grow with the lengths of their steps")
    errors = np.abs(times - design @ coefficients)
    return CostFit(
        model=Quadratic(a, b),
        constant=constant,
        explained=_explained(times, errors, weights),
        typical_error=float(np.median(errors / times)),
        outliers=int((weights == 0).sum()),
        steps=len(times),
    )


def _design(lengths: Sequence[npt.ArrayLike], times: FloatArray) -> FloatArray:
    """Returns ΣL, ΣL² and 1 for each step; shape ``[steps, 3]``."""
    if times.ndim != 1 or len(times) != len(lengths):
        raise ValueError(f"lengths of {len(lengths)} steps, but seconds of shape {times.shape}")
    if len(times) < _FEWEST_STEPS:
        raise ValueError(f"{len(times)} steps are too few to fit, {_FEWEST_STEPS} are needed")
    steps = [np.atleast_1d(np.asarray(step, dtype=np.float64)) for step in lengths]
    for number, (step, time) in enumerate(zip(steps, times, strict=True)):
        if not (np.isfinite(step) & (step >= 0)).all() or not (np.isfinite(time) and time > 0):
            raise ValueError(
                f"step {number}: lengths must be finite and not negative and seconds positive, got"
                f" {step.tolist()} and {time}"
            )
    design = np.array([[step.sum(), (step * step).sum(), 1.0] for step in steps])
    scale = np.linalg.norm(design, axis=0)
    variation = np.linalg.svd(design / np.where(scale > 0, scale, 1.0), compute_uv=False)
    if variation[-1] < _LEAST_VARIATION * variation[0]:
        raise ValueError(
            f"the {len(times)} steps are too alike to tell a, b and c apart: between"
            f" {design[:, 0].min():g} and {design[:, 0].max():g} tokens a step; measure steps with"
            " short and with long samples"
        )
    return design


def _robust_fit(design: FloatArray, times: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns coefficients, shape ``[3]``, and the final weight of each step."""
    weights = np.ones(len(times))
    coefficients = _nonnegative_fit(design, times, weights)
    # Huber's weights have one solution, but outliers keep some influence; Tukey's take that away,
    # and need a good start.
    for weigh in (_huber_weights, _bisquare_weights):
        coefficients, weights = _reweighted_fit(design, times, coefficients, weigh)
    return coefficients, weights


def _reweighted_fit(
    design: FloatArray,
    times: FloatArray,
    coefficients: FloatArray,
    weigh: Callable[[FloatArray], FloatArray],
) -> tuple[FloatArray, FloatArray]:
    weights = np.ones(len(times))
    for _ in range(_ROUNDS):
        errors = times - design @ coefficients
        # Never zero: with an exact fit the rounding errors would be weighed.
        sigma = max(_SIGMA_PER_MEDIAN * float(np.median(np.abs(errors))), 1e-9 * times.max())
        weights = weigh(errors / sigma)
        before, coefficients = coefficients, _nonnegative_fit(design, times, weights)
        if np.allclose(before, coefficients, rtol=1e-9, atol=0.0):
            break
    return coefficients, weights


def _huber_weights(errors: FloatArray) -> FloatArray:
    return _HUBER / np.maximum(np.abs(errors), _HUBER)


def _bisquare_weights(errors: FloatArray) -> FloatArray:
    inside = 1 - np.minimum(np.abs(errors) / _BISQUARE, 1.0) ** 2
    weights: FloatArray = inside * inside
    return weights


def _nonnegative_fit(design: FloatArray, times: FloatArray, weights: FloatArray) -> FloatArray:
    """Returns the weighted least squares solution without negative coefficients, shape ``[3]``.

    It is the plain solution for the terms that are not zero in it, so with three terms each of the
    seven choices is tried.
    """
    root = np.sqrt(weights)
    # Columns of one size: ΣL² may be a million times ΣL.
    scale = np.linalg.norm(design, axis=0)
    scaled = design / scale * root[:, None]
    best, best_error = np.zeros(3), np.inf
    for count in (1, 2, 3):
        for terms in combinations(range(3), count):
            columns = list(terms)
            solution = np.linalg.lstsq(scaled[:, columns], times * root, rcond=None)[0]
            error = float(np.sum((scaled[:, columns] @ solution - times * root) ** 2))
            if (solution >= 0).all() and error < best_error:
                best, best_error = np.zeros(3), error
                best[columns] = solution / scale[columns]
    return best


def _explained(times: FloatArray, errors: FloatArray, weights: FloatArray) -> float:
    used = weights > 0
    spread = float(((times[used] - times[used].mean()) ** 2).sum())
    return 1.0 - float((errors[used] ** 2).sum()) / spread if spread > 0 else 1.0
