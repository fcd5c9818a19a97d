"""Cost models, and the fit of one to measured step times."""

import numpy as np
import numpy.typing as npt
import pytest

from freescale_pg.balance import CostFit, Linear, Quadratic, fit_cost
from freescale_pg.balance.cost import evaluate

Floats = npt.NDArray[np.float64]

A, B, C = 2e-6, 3e-9, 0.004


def measured(steps: int, noise: float, seed: int = 0) -> tuple[list[Floats], Floats]:
    """Steps of 16 samples each and their times by the known model."""
    random = np.random.default_rng(seed)
    lengths = [np.rint(200 * np.exp(random.standard_normal(16))) for _ in range(steps)]
    times = np.array([A * step.sum() + B * (step**2).sum() + C for step in lengths])
    return lengths, times * (1 + noise * random.standard_normal(steps))


def check_close(fit: CostFit, tolerance: float) -> None:
    found = (fit.model.a, fit.model.b, fit.constant)
    assert found == pytest.approx((A, B, C), rel=tolerance)


# --- Models ---------------------------------------------------------------------------------------


def test_models_are_what_they_say() -> None:
    lengths = np.array([0.0, 1.0, 10.0])
    assert Linear()(lengths).tolist() == [0.0, 1.0, 10.0]
    assert Quadratic(2, 0.5)(lengths).tolist() == [0.0, 2.5, 70.0]


@pytest.mark.parametrize("a, b", [(-1, 1), (1, -1), (0, 0), (float("nan"), 1), (1, float("inf"))])
def test_quadratic_refuses_impossible_coefficients(a: float, b: float) -> None:
    with pytest.raises(ValueError, match=r"Quadratic\(a="):
        Quadratic(a, b)


def test_a_cost_that_is_impossible_is_named() -> None:
    lengths, indices = np.array([3.0, 4.0]), np.array([70, 71])
    with pytest.raises(ValueError, match=r"-1\.0 for sample 71 of length 4"):
        evaluate(lambda lengths: 3 - lengths, lengths, indices)
    with pytest.raises(ValueError, match="nan for sample 70"):
        evaluate(lambda lengths: lengths * np.nan, lengths, indices)
    with pytest.raises(ValueError, match=r"shape \(\) for lengths of shape \(2,\)"):
        evaluate(lambda lengths: lengths.sum(), lengths, indices)


# --- Fit ------------------------------------------------------------------------------------------


def test_fit_finds_the_coefficients() -> None:
    fit = fit_cost(*measured(20, noise=0))
    check_close(fit, 1e-6)
    assert fit.explained == pytest.approx(1)
    assert fit.typical_error < 1e-9
    assert fit.steps == 20


def test_fit_of_single_samples() -> None:
    lengths = [10.0, 100.0, 400.0, 900.0, 2000.0]
    fit = fit_cost(lengths, [A * length + B * length**2 + C for length in lengths])
    check_close(fit, 1e-6)


def test_fit_ignores_steps_that_took_unusually_long() -> None:
    lengths, times = measured(60, noise=0.01)
    times[::6] *= 5
    fit = fit_cost(lengths, times)
    clean = [i for i in range(60) if i % 6]
    without = fit_cost([lengths[i] for i in clean], times[clean])
    assert fit.outliers >= 10
    assert fit.model.a == pytest.approx(without.model.a, rel=0.05)
    assert fit.model.b == pytest.approx(without.model.b, rel=0.05)
    assert fit.explained > 0.95
    assert f"{fit.outliers} outliers" in str(fit)


def test_fit_says_when_lengths_do_not_explain_the_times() -> None:
    lengths, times = measured(60, noise=0)
    shuffled = np.random.default_rng(1).permutation(times)
    assert fit_cost(lengths, times).explained > 0.999
    assert fit_cost(lengths, shuffled + 0.01 * times).explained < 0.5


def test_fit_gives_no_negative_coefficient() -> None:
    lengths = [10.0, 100.0, 400.0, 900.0, 2000.0]
    # Concave: least squares without bounds would make b negative.
    fit = fit_cost(lengths, np.sqrt(lengths))
    assert fit.model.b == 0
    assert fit.model.a > 0
    assert fit.constant > 0


@pytest.mark.parametrize(
    ("lengths", "seconds", "message"),
    [
        ([[1.0], [2.0]], [1.0, 2.0], "2 steps are too few"),
        ([[1.0], [2.0], [3.0], [4.0]], [1.0, 2.0, 3.0], r"lengths of 4 steps.*shape \(3,\)"),
        ([[5.0, 6.0]] * 6, [1.0] * 6, "too alike to tell a, b and c apart: between 11 and 11"),
        ([[1.0], [2.0], [-3.0], [4.0]], [1.0] * 4, "step 2: .*-3.0"),
        ([[1.0], [2.0], [3.0], [4.0]], [1.0, 0.0, 1.0, 1.0], "step 1: .*seconds positive"),
        ([[1.0], [2.0], [3.0], [5.0]], [4.0, 3.0, 2.0, 1.0], "do not grow with the lengths"),
    ],
)
def test_fit_refuses_what_cannot_be_fitted(
    lengths: list[list[float]], seconds: list[float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fit_cost(lengths, seconds)
