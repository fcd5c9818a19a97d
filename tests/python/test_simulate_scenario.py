"""Lengths, who gets which samples, what they cost, and the four modes of a training."""

import json
from pathlib import Path

import numpy as np
import pytest

from freescale_pg.balance import BalancedBatchSampler, Quadratic
from freescale_pg.simulate.breakdown import Breakdown
from freescale_pg.simulate.cluster import Cluster
from freescale_pg.simulate.deal import deal
from freescale_pg.simulate.lengths import Lognormal, Zipf, read_lengths
from freescale_pg.simulate.load import Sizes
from freescale_pg.simulate.measured import fit_measured
from freescale_pg.simulate.modes import Mode, Outcome, gone, simulate
from freescale_pg.simulate.report import as_json, exposed_table, table
from freescale_pg.simulate.scenario import Scenario, StepCost
from freescale_pg.simulate.schedule import Traffic
from freescale_pg.simulate.transformer import Transformer

COST = Quadratic(1.0, 1 / 1024)


def scenario(**options: object) -> Scenario:
    usual: dict[str, object] = {
        "cluster": Cluster(8, 4, 100e9, 10e9, 10e-6),
        "sizes": Sizes(512.0, 8.0, (5e6, 5e6)),
        "cost": StepCost(2e-6, 2e-9, 1e-3),
        "lengths": Lognormal(200.0, 1.0, 4096).draw(4096, 0),
        "samples_per_rank": 32,
        "shared": 0.3,
        "distinct": 1.0,
        "slowdown": 0.2,
        "steps": 10,
        "warm_up": 3,
        "seed": 0,
    }
    return Scenario(**{**usual, **options})  # type: ignore[arg-type]


# --- Lengths ----------------------------------------------------------------------------------


def test_zipf_has_its_exponent_and_its_cut() -> None:
    lengths = Zipf(2.0, 50).draw(200_000, 3)
    counts = np.bincount(lengths, minlength=51)
    assert lengths.min() == 1
    assert lengths.max() == 50
    assert counts[1] / counts[2] == pytest.approx(4, rel=0.05)
    assert counts[2] / counts[4] == pytest.approx(4, rel=0.1)
    # All that is longer lies at the cut: P(k ≥ 50) = 0.0123.
    assert counts[50] / len(lengths) == pytest.approx(0.0123, rel=0.1)


def test_lognormal_has_its_median_and_its_cut() -> None:
    lengths = Lognormal(200.0, 1.0, 1000).draw(100_000, 1)
    assert np.median(lengths) == pytest.approx(200, rel=0.02)
    assert lengths.max() == 1000
    assert np.quantile(lengths, 0.8413) == pytest.approx(200 * np.e, rel=0.03)


def test_lognormal_is_fitted_to_lengths() -> None:
    drawn = Lognormal(300.0, 0.8, 100_000).draw(50_000, 2)
    fitted = Lognormal.fitted(drawn)
    assert fitted.median == pytest.approx(300, rel=0.02)
    assert fitted.sigma == pytest.approx(0.8, rel=0.02)
    assert fitted.longest == drawn.max()


@pytest.mark.parametrize("name", ["lengths.npy", "lengths.txt"])
def test_lengths_are_read(tmp_path: Path, name: str) -> None:
    path, lengths = tmp_path / name, np.array([5, 0, 4096])
    if path.suffix == ".npy":
        np.save(path, lengths)
    else:
        path.write_text("5\n0\n4096\n")
    assert read_lengths(path).tolist() == [5, 0, 4096]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5\n-3\n", r"length 1 is -3\.0, not a number of tokens"),
        ("5\n2.5\n", r"length 1 is 2\.5, not a number of tokens"),
        ("5\nfive\n", "does not hold one length a line: .*five"),
        ("1 2\n3 4\n", r"holds an array of shape \(2, 2\)"),
    ],
)
def test_impossible_lengths_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        read_lengths(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Zipf(1.0, 10), r"exponent of a Zipf law must be above 1, got 1\.0"),
        (lambda: Zipf(1.2, 0), "longest length must be 1 token or more, got 0"),
        (lambda: Lognormal(0.0, 1.0, 10), r"median length must be positive, got 0\.0"),
        (lambda: Lognormal(1.0, -1.0, 10), r"sigma must be finite and not negative, got -1\.0"),
        (lambda: Lognormal.fitted(np.zeros(3, dtype=np.int64)), "none of the 3 lengths"),
    ],
)
def test_impossible_distributions_are_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


# --- Who gets what, and what it costs ---------------------------------------------------------


def test_batches_are_the_samplers_own() -> None:
    lengths = Lognormal(200.0, 1.0, 4096).draw(1000, 0)
    sampler = BalancedBatchSampler(
        lengths, 32, num_replicas=4, rank=0, seed=7, drop_last=True, cost_model=COST
    )
    batches = list(deal(lengths, 4, 32, COST, steps=9, seed=7))
    assert len(batches) == 9
    assert len(sampler) == 7  # so the last two are of the second epoch
    for number, batch in enumerate(batches):
        sampler.set_epoch(number // 7)
        plan = sampler.plan(number % 7)
        for rank in range(4):
            own = lengths[plan.samples_of(rank)]
            assert batch.balanced.tokens[rank] == own.sum()
            assert batch.balanced.cost[rank] == pytest.approx(COST(own.astype(float)).sum())
        assert batch.balanced.cost.max() == pytest.approx(plan.balance.peak)
        assert batch.in_turn.cost.max() == pytest.approx(plan.balance.plain_peak)
        assert batch.in_turn.tokens.sum() == batch.balanced.tokens.sum()


def test_too_few_lengths_are_refused() -> None:
    message = "100 lengths are too few for a global batch of 4 ranks × 32 samples = 128"
    with pytest.raises(ValueError, match=message):
        list(deal(np.arange(100), 4, 32, COST, 1, 0))


def test_transformer_costs_its_multiplications() -> None:
    model = Transformer(2, 4, 1e6, 1e9)
    length, forward = 7, 0
    for _ in range(2):
        forward += 2 * length * 4 * (4 * 4) + 2 * length * 4 * 4
        forward += 2 * (2 * length * length * 4) // 2
    cost = model.token_seconds * length + model.pair_seconds * length**2
    assert cost == pytest.approx(3 * forward / 1e6)
    assert model.gradient_bytes == 4 * model.parameters == 4 * 2 * 5 * 16


def test_cost_is_fitted_to_measured_steps(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    lengths = [[10, 250], [900, 30], [80, 90], [400, 410], [700], [5, 5, 600]]
    seconds = [0.01 + sum(1e-4 * n + 2e-7 * n * n for n in step) for step in lengths]
    path.write_text(json.dumps({"lengths": lengths, "seconds": seconds}))
    cost = fit_measured(path)
    assert (cost.token, cost.pair, cost.constant) == pytest.approx((1e-4, 2e-7, 0.01), rel=1e-3)


@pytest.mark.parametrize(
    "text", ['{"lengths": [[1]]}', "[1]", "{", '{"lengths": [], "seconds": []}']
)
def test_steps_that_are_none_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "steps.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="does not hold measured steps") as error:
        fit_measured(path)
    assert str(path) in str(error.value)


# --- Modes ------------------------------------------------------------------------------------


def test_each_technique_removes_what_it_is_for() -> None:
    outcomes = simulate(scenario())
    assert [outcome.mode for outcome in outcomes] == list(Mode)
    baseline, balance, overlap, sm_free = (outcome.time for outcome in outcomes)
    assert balance.straggler < 0.2 * baseline.straggler
    assert overlap.communication < 0.7 * balance.communication
    assert sm_free.slowdown == pytest.approx(0.0, abs=1e-9)
    assert overlap.slowdown > 0
    bubbles = [outcome.time.bubble for outcome in outcomes]
    assert bubbles == sorted(bubbles, reverse=True)
    # Nobody computes more or less.
    assert [outcome.time.compute for outcome in outcomes] == pytest.approx([baseline.compute] * 4)


def test_modes_agree_chunk_by_chunk() -> None:
    work = scenario(steps=5)
    for coarse, exact in zip(simulate(work), simulate(work, link_by_link=True), strict=True):
        assert coarse.time.step_seconds == pytest.approx(exact.time.step_seconds, rel=0.01)


def test_equal_samples_on_infinite_links_have_no_bubble() -> None:
    infinite = float("inf")
    work = scenario(
        lengths=np.full(1000, 100), cluster=Cluster(8, 8, infinite, infinite), slowdown=0.5
    )
    for outcome in simulate(work):
        assert outcome.time.bubble == pytest.approx(0.0, abs=1e-9)
        assert gone(outcome, [outcome]) in (0.0, pytest.approx(0.0))


def test_bubbles_gone_is_against_the_first() -> None:
    def outcome(mode: Mode, compute: float) -> Outcome:
        waited = dict.fromkeys(Traffic, 0.0)
        return Outcome(mode, Breakdown(2, 1, 10.0, compute, 0.0, 10.0 - compute, waited), 0)

    outcomes = [outcome(Mode.BASELINE, 6.0), outcome(Mode.BALANCE, 9.0)]
    assert outcomes[1].time.bubble == pytest.approx(0.1)
    assert gone(outcomes[1], outcomes) == pytest.approx(0.75)
    assert "75.00" in table(outcomes)


def test_report_has_every_mode_and_adds_up() -> None:
    outcomes = simulate(scenario())
    lines = table(outcomes).splitlines()
    assert [line.startswith(mode.value) for line, mode in zip(lines[1:], Mode, strict=True)]
    assert "embedding vectors" in exposed_table(outcomes)
    told = json.loads(json.dumps(as_json(outcomes, {"ranks": 8})))
    assert told["parameters"] == {"ranks": 8}
    for mode in told["modes"]:
        spent = mode["rank_seconds"]
        parts = spent["compute"] + spent["slowdown"] + spent["straggler"]
        assert parts + sum(spent["exposed"].values()) == pytest.approx(spent["elapsed"])
        assert mode["bubble"] == pytest.approx(1 - spent["compute"] / spent["elapsed"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shared": 1.5}, r"shared must be between 0 and 1, got 1\.5"),
        ({"distinct": -0.1}, r"distinct must be between 0 and 1, got -0\.1"),
        ({"steps": 0}, "steps must be 1 or more, got 0"),
        ({"warm_up": -1}, "warm_up must be 0 or more, got -1"),
    ],
)
def test_impossible_scenarios_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scenario(**options)


def test_impossible_costs_are_refused() -> None:
    with pytest.raises(ValueError, match=r"seconds per pair must be .* got -1\.0"):
        StepCost(1.0, -1.0)
    with pytest.raises(ValueError, match="samples cost nothing"):
        StepCost(0.0, 0.0, 1.0)
    with pytest.raises(ValueError, match=r"flops_per_second must be positive, got 0\.0"):
        Transformer(1, 1, 0.0, 1.0)
