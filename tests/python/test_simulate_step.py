"""Simulated steps: closed forms, where the time went, and two models of one machine."""

import itertools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from freescale_pg.simulate.breakdown import Breakdown
from freescale_pg.simulate.cluster import Cluster
from freescale_pg.simulate.exchange import (
    NIC_IN,
    NIC_OUT,
    NVLINK_IN,
    NVLINK_OUT,
    AllReduce,
    Exchange,
    FromHolders,
    ToHolders,
)
from freescale_pg.simulate.fluid import FluidSimulation
from freescale_pg.simulate.link_by_link import LinkByLinkSimulation
from freescale_pg.simulate.load import Loads, Sizes, StepLoad
from freescale_pg.simulate.regime import Regime
from freescale_pg.simulate.schedule import Schedule, Stage, Traffic, blocking, ids_ahead, overlapped

INFINITE = float("inf")
SCHEDULES = (blocking, ids_ahead, overlapped)
# Step times of the two models differ by less; their own shares of it by rather more.
AGREEMENT = 0.01

Simulation = type[FluidSimulation] | type[LinkByLinkSimulation]
both_models = pytest.mark.parametrize("model", [FluidSimulation, LinkByLinkSimulation])


def batch(
    rows: npt.NDArray[np.float64], shared: float, forward: npt.NDArray[np.float64]
) -> StepLoad:
    seconds = {
        Stage.FORWARD: forward,
        Stage.BACKWARD: 2 * forward,
        Stage.OPTIMIZER: np.full(len(rows), 0.001),
    }
    return StepLoad(rows, shared * rows, shared * rows, seconds)


def loads(
    ranks: int, *, rows: float = 1000.0, shared: float = 0.3, steps: int = 6, buckets: int = 0
) -> Loads:
    """Equal loads: a step computes for 31 ms."""
    same = batch(np.full(ranks, rows), shared, np.full(ranks, 0.01))
    return Loads(Sizes(512.0, 8.0, (1e6,) * buckets), [same] * steps)


def uneven_loads(ranks: int, *, steps: int = 7, buckets: int = 3) -> Loads:
    chance = np.random.default_rng(ranks)
    batches = []
    for _ in range(steps):
        rows = chance.lognormal(9.5, 0.4, ranks)
        batches.append(batch(rows, 0.3, rows * 1e-6))
    return Loads(Sizes(512.0, 8.0, (25e6,) * buckets), batches)


def simulate(
    model: Simulation, cluster: Cluster, work: Loads, regime: Regime, warm_up: int = 2
) -> Breakdown:
    result = model(cluster, work, regime).run(warm_up)
    parts = result.compute + result.slowdown + result.straggler + result.communication
    assert parts == pytest.approx(result.elapsed, rel=1e-12)
    return result


def cluster(ranks: int, rate: float = INFINITE, **options: float) -> Cluster:
    return Cluster(ranks, ranks, rate, rate, **options)  # type: ignore[arg-type]


@both_models
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_equal_loads_on_infinite_links_have_no_bubble(
    model: Simulation, schedule: Schedule
) -> None:
    result = simulate(model, cluster(4), loads(4, buckets=2), Regime(schedule, True, 0.5))
    assert result.bubble == pytest.approx(0.0, abs=1e-12)
    assert result.step_seconds == pytest.approx(0.031)


@both_models
def test_one_straggler_makes_all_wait_for_it(model: Simulation) -> None:
    forward = np.array([0.01, 0.01, 0.01, 0.03])
    work = Loads(Sizes(512.0, 8.0), [batch(np.full(4, 100.0), 0.0, forward)] * 5)
    result = simulate(model, cluster(4), work, Regime(blocking, False))
    # 3 · 0.03 + 0.001 a step; the others compute 0.031.
    assert result.step_seconds == pytest.approx(0.091)
    assert result.bubble == pytest.approx(1 - (0.091 + 3 * 0.031) / (4 * 0.091))
    assert result.straggler == pytest.approx(3 * 3 * 0.06)
    assert result.communication == pytest.approx(0.0, abs=1e-12)


@both_models
def test_exchange_takes_its_bytes_over_the_rate(model: Simulation) -> None:
    ranks, rows, rate = 4, 40_000.0, 1e9
    work = loads(ranks, rows=rows)
    result = simulate(model, cluster(ranks, rate), work, Regime(blocking, False))
    away = rows * (ranks - 1) / ranks
    per_rank_and_step = {
        Traffic.IDS: away * 8 / rate,
        Traffic.VECTORS: away * 512 / rate,
        Traffic.GRADIENTS: away * 512 / rate,
    }
    assert result.step_seconds == pytest.approx(0.031 + sum(per_rank_and_step.values()), rel=0.01)
    # Chunk by chunk, the last one comes in at different times, so that ranks wait for each other.
    near = 1e-6 if model is FluidSimulation else 0.3
    for traffic, waited in result.exposed.items():
        expected = per_rank_and_step.get(traffic, 0.0)
        assert waited / (ranks * result.steps) == pytest.approx(expected, rel=near, abs=1e-12)


@both_models
def test_latency_is_paid_by_each_exchange_on_the_way(model: Simulation) -> None:
    result = simulate(model, cluster(4, latency_seconds=0.002), loads(4), Regime(blocking, False))
    assert result.communication / (4 * result.steps) == pytest.approx(3 * 0.002)


@both_models
def test_slowdown_is_bubble_and_not_compute(model: Simulation) -> None:
    # One bucket of 1 MB at 1 GB/s: 2 · 3/4 ms on the wire beside the second half of the backward.
    work = loads(4, rows=0.0, buckets=2)
    machine = cluster(4, 1e9, chunk_bytes=5000)
    plain = simulate(model, machine, work, Regime(ids_ahead, False))
    slowed = simulate(model, machine, work, Regime(ids_ahead, False, 0.5))
    assert slowed.compute == pytest.approx(plain.compute)
    # In 1.5 ms half a third of the time is lost.
    assert slowed.slowdown / (4 * slowed.steps) == pytest.approx(0.0005, rel=0.01)
    assert slowed.step_seconds - plain.step_seconds == pytest.approx(0.0005, rel=0.01)
    assert slowed.bubble > plain.bubble


@both_models
def test_overlap_exposes_the_shared_part_of_the_vectors_alone(model: Simulation) -> None:
    ranks, rows, rate, shared = 4, 10_000.0, 1e9, 0.25
    work = loads(ranks, rows=rows, shared=shared, steps=8)
    result = simulate(
        model, cluster(ranks, rate, chunk_bytes=8000), work, Regime(overlapped, True), warm_up=3
    )
    exposed = rows * (ranks - 1) / ranks * shared * 512 / rate
    waited = result.exposed[Traffic.VECTORS] / (ranks * result.steps)
    # And the chunk that is on the wire.
    assert waited == pytest.approx(exposed, rel=0.02)
    # Gradients of the shared rows take 0.96 ms, and the optimizer 1 ms.
    assert result.exposed[Traffic.GRADIENTS] == pytest.approx(0.0, abs=1e-12)
    assert result.exposed[Traffic.LATE_GRADIENTS] == pytest.approx(0.0, abs=1e-12)


def test_first_come_first_served_keeps_the_vectors_waiting() -> None:
    """The late gradients of the step before are on the links when the vectors are asked for."""
    work = loads(4, rows=60_000.0, shared=0.1, steps=8)
    waited = {
        prioritised: simulate(
            FluidSimulation, cluster(4, 2e9), work, Regime(overlapped, prioritised), warm_up=3
        ).exposed[Traffic.VECTORS]
        for prioritised in (True, False)
    }
    assert waited[False] > 3 * waited[True]


@pytest.mark.parametrize(("ranks", "per_host"), [(2, 2), (4, 4), (8, 8), (8, 4), (8, 1), (16, 8)])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("rates", [(450e9, 50e9), (20e9, 5e9)])
def test_both_models_agree(
    ranks: int, per_host: int, schedule: Schedule, rates: tuple[float, float]
) -> None:
    machine = Cluster(ranks, per_host, *rates, 20e-6, chunk_bytes=1 << 20)
    work = uneven_loads(ranks)
    for regime in (Regime(schedule, False, 0.19), Regime(schedule, True)):
        coarse, exact = (
            simulate(model, machine, work, regime)
            for model in (FluidSimulation, LinkByLinkSimulation)
        )
        assert coarse.compute == pytest.approx(exact.compute)
        assert coarse.step_seconds == pytest.approx(exact.step_seconds, rel=AGREEMENT)
        assert coarse.bubble == pytest.approx(exact.bubble, abs=AGREEMENT)


EXCHANGES: tuple[Callable[[int], Exchange], ...] = (
    lambda ranks: FromHolders(np.arange(1.0, ranks + 1)),
    lambda ranks: ToHolders(np.arange(1.0, ranks + 1)),
    lambda _: AllReduce(100.0),
)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize(("ranks", "per_host"), [(1, 1), (4, 4), (6, 2), (6, 1)])
def test_links_carry_what_the_pairs_exchange(
    exchange: Callable[[int], Exchange], ranks: int, per_host: int
) -> None:
    machine = Cluster(ranks, per_host, 1.0, 1.0)
    moved = exchange(ranks)
    pairs, ports = moved.pair_bytes(machine), np.zeros((4, ranks))
    for sender, receiver in itertools.product(range(ranks), repeat=2):
        near = machine.host_of(sender) == machine.host_of(receiver)
        ports[NVLINK_OUT if near else NIC_OUT, sender] += pairs[sender, receiver]
        ports[NVLINK_IN if near else NIC_IN, receiver] += pairs[sender, receiver]
    np.testing.assert_allclose(moved.port_bytes(machine), ports, atol=1e-12)
    assert np.diagonal(pairs).sum() == 0


def test_starved_exchange_is_counted() -> None:
    work = loads(4, rows=60_000.0, shared=0.9, steps=6, buckets=4)
    simulation = FluidSimulation(cluster(4, 1e8), work, Regime(overlapped, True))
    simulation.run(2)
    assert simulation.starved > 0
    quick = FluidSimulation(cluster(4, 1e12), work, Regime(overlapped, True))
    quick.run(2)
    assert quick.starved == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranks": 0}, "ranks must be 1 or more, got 0"),
        ({"ranks": 12}, "12 ranks do not fill hosts of 8 ranks_per_host"),
        ({"nic_bytes_per_second": 0.0}, "nic_bytes_per_second must be positive, got 0.0"),
        ({"latency_seconds": -1.0}, "latency_seconds must be finite and not negative, got -1.0"),
    ],
)
def test_impossible_machines_are_refused(options: dict[str, float], message: str) -> None:
    usual = {
        "ranks": 16,
        "ranks_per_host": 8,
        "nvlink_bytes_per_second": 1.0,
        "nic_bytes_per_second": 1.0,
    }
    with pytest.raises(ValueError, match=message):
        Cluster(**{**usual, **options})  # type: ignore[arg-type]


def test_impossible_slowdown_is_refused() -> None:
    with pytest.raises(ValueError, match=r"slowdown must be finite and not negative, got -0\.1"):
        Regime(blocking, True, -0.1)


def test_no_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="there are no batches to simulate"):
        Loads(Sizes(1.0, 1.0), [])
