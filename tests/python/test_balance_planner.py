"""The C++ planner against the reference, and what every plan must satisfy."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import balance_reference as reference
from freescale_pg._extension import _C
from freescale_pg.balance import rebalance
from freescale_pg.balance.global_batch import integer_costs

PROFILE = settings(max_examples=300, derandomize=True, database=None, deadline=None)

Integers = npt.NDArray[np.int64]

# Many equal ones, so that ties decide; now and then one that outweighs all others.
AMOUNTS = st.one_of(st.integers(0, 8), st.integers(0, 1000), st.integers(0, 1 << 40))


@st.composite
def batches(draw: st.DrawFn, equal_counts: bool) -> tuple[list[int], int]:
    """Costs and a number of ranks that can share them."""
    world_size = draw(st.integers(1, 9))
    if equal_counts:
        samples = world_size * draw(st.integers(1, 12))
    else:
        samples = draw(st.integers(world_size, 60))
    return draw(st.lists(AMOUNTS, min_size=samples, max_size=samples)), world_size


def array(values: list[int]) -> Integers:
    return np.array(values, dtype=np.int64)


def loads(costs: Integers, ranks: npt.NDArray[np.int32], world_size: int) -> Integers:
    return np.array([costs[ranks == rank].sum() for rank in range(world_size)])


def lognormal_costs(samples: int, seed: int) -> Integers:
    """Costs L + L²/1024 of lengths with median 200, sigma 1, clipped at 8192."""
    normal = np.random.default_rng(seed).standard_normal(samples)
    lengths = np.minimum(np.rint(200 * np.exp(normal)), 8192)
    return integer_costs(lengths + lengths**2 / 1024)[0]


# --- The order of an epoch ------------------------------------------------------------------------


@PROFILE
@given(st.data(), st.integers(1, 5000), st.integers(0, 2**63 - 1), st.integers(0, 100))
def test_order_is_that_of_the_reference(
    data: st.DataObject, size: int, seed: int, epoch: int
) -> None:
    first = data.draw(st.integers(0, size - 1))
    count = data.draw(st.integers(0, min(20, size - first)))
    ours = _C.permuted_indices(size, seed, epoch, first, count)
    assert ours.dtype == np.int64
    assert ours.tolist() == reference.permuted_indices(size, seed, epoch, first, count)


def test_order_never_changes() -> None:
    """Saved states count steps of it: a change would repeat some samples and leave others out."""
    assert _C.permuted_indices(10, 0, 0, 0, 10).tolist() == [5, 2, 8, 6, 0, 4, 9, 7, 1, 3]
    end = [757013745, 571424595, 861388228, 661271404]
    assert _C.permuted_indices(10**9, 42, 7, 10**9 - 4, 4).tolist() == end


@pytest.mark.parametrize("size", [3, 8, 10, 24])
def test_every_element_is_as_likely_at_every_place(size: int) -> None:
    """χ² over elements and places; fixed seeds, and a limit that 1 of 10⁴ seeds would exceed."""
    epochs = 4000
    orders = np.array([_C.permuted_indices(size, 5, epoch, 0, size) for epoch in range(epochs)])
    counts = np.array([np.bincount(column, minlength=size) for column in orders.T])
    expected = epochs / size
    freedom = (size - 1) ** 2
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    assert chi2 < freedom + 4 * np.sqrt(2 * freedom)


@pytest.mark.parametrize(
    ("size", "first", "count"), [(0, 0, 0), (10, 8, 3), (10, 0, 11), (10, 2**63, 1), (2**63, 0, 1)]
)
def test_order_refuses_what_does_not_exist(size: int, first: int, count: int) -> None:
    with pytest.raises(ValueError, match=f"no {count} elements from {first} in an order of {size}"):
        _C.permuted_indices(size, 0, 0, first, count)


# --- Plans ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("equal_counts", [True, False])
def test_plan_is_that_of_the_reference(equal_counts: bool) -> None:
    @PROFILE
    @given(batches(equal_counts))
    def same_plan(batch: tuple[list[int], int]) -> None:
        costs, world_size = batch
        ranks, floor = _C.plan_balance(array(costs), world_size, equal_counts)
        assert (ranks.tolist(), floor) == reference.plan_balance(costs, world_size, equal_counts)

    same_plan()


@pytest.mark.parametrize("equal_counts", [True, False])
def test_plan_with_a_token_limit_is_that_of_the_reference(equal_counts: bool) -> None:
    @PROFILE
    @given(batches(equal_counts), st.data())
    def same_plan(batch: tuple[list[int], int], data: st.DataObject) -> None:
        costs, world_size = batch
        tokens = data.draw(st.lists(AMOUNTS, min_size=len(costs), max_size=len(costs)))
        bound = reference.floor_load(tokens, world_size, equal_counts)
        most = bound + data.draw(st.integers(-1, max(1, bound // 2)))
        expected = reference.plan_balance(costs, world_size, equal_counts, tokens, most)
        arguments = (array(costs), world_size, equal_counts, array(tokens), most)
        if expected is None:
            with pytest.raises(ValueError, match=f"tokens.*more than the {most} allowed"):
                _C.plan_balance(*arguments)
            return
        ranks, _ = _C.plan_balance(*arguments)
        assert ranks.tolist() == expected[0]
        assert loads(array(tokens), ranks, world_size).max() <= most

    same_plan()


@pytest.mark.parametrize("equal_counts", [True, False])
def test_no_exchange_between_two_ranks_would_help(equal_counts: bool) -> None:
    """Tries all pairs of samples: the heaviest rank is within tolerance, or cannot be relieved."""

    @PROFILE
    @given(batches(equal_counts))
    def nothing_left_to_do(batch: tuple[list[int], int]) -> None:
        costs, world_size = array(batch[0]), batch[1]
        ranks, floor = _C.plan_balance(costs, world_size, equal_counts)
        held = [costs[ranks == rank] for rank in range(world_size)]
        sums = np.array([int(each.sum()) for each in held])
        heavy = int(sums.argmax())
        assert floor <= sums[heavy]
        if sums[heavy] <= floor + floor // 4096:
            return
        for light in range(world_size):
            shifts = held[heavy][:, None] - held[light][None, :]
            if not equal_counts and len(held[heavy]) > 1:
                shifts = np.append(shifts.ravel(), held[heavy])
            assert not ((shifts > 0) & (shifts < sums[heavy] - sums[light])).any()

    nothing_left_to_do()


@pytest.mark.parametrize("world_size", [2, 8, 64])
@pytest.mark.parametrize("per_rank", [32, 128])
def test_lognormal_batches_come_within_two_thousandths_of_the_floor(
    world_size: int, per_rank: int
) -> None:
    costs = lognormal_costs(world_size * per_rank, seed=world_size + per_rank)
    ranks, floor = _C.plan_balance(costs, world_size, True)
    assert loads(costs, ranks, world_size).max() <= 1.002 * floor


def test_planner_takes_no_other_dtype() -> None:
    with pytest.raises(TypeError):
        _C.plan_balance(np.ones(4), 2, True)
    with pytest.raises(ValueError, match="costs must have one dimension, got 2"):
        _C.plan_balance(np.ones((2, 2), dtype=np.int64), 2, True)


# --- Costs as integers ----------------------------------------------------------------------------


@PROFILE
@given(st.lists(st.integers(0, 1 << 30), min_size=1, max_size=30))
def test_integer_costs_keep_integers(values: list[int]) -> None:
    whole, exponent = integer_costs(np.array(values, dtype=np.float64))
    assert [int(value) for value in np.ldexp(whole.astype(np.float64), -exponent)] == values


@PROFILE
@given(st.lists(st.floats(0, 1e300, allow_nan=False), min_size=1, max_size=30))
def test_integer_costs_keep_order_and_ratios(values: list[float]) -> None:
    costs = np.array(values)
    whole, exponent = integer_costs(costs)
    assert (whole >= 0).all()
    assert whole.max() <= 1 << 40
    order = np.argsort(costs, kind="stable")
    assert (np.diff(whole[order]) >= 0).all()
    if costs.max() > 1e-290:
        assert np.allclose(
            np.ldexp(whole.astype(np.float64), -exponent), costs, atol=1e-12 * costs.max()
        )


# --- Correction of an assignment ------------------------------------------------------------------


@pytest.mark.parametrize("equal_counts", [True, False])
def test_rebalancing_is_that_of_the_reference(equal_counts: bool) -> None:
    @PROFILE
    @given(batches(equal_counts), st.data())
    def same_ranks(batch: tuple[list[int], int], data: st.DataObject) -> None:
        costs, world_size = batch
        places = st.integers(0, world_size - 1)
        ranks = data.draw(st.lists(places, min_size=len(costs), max_size=len(costs)))
        target = sum(costs) // world_size + data.draw(st.integers(0, 50))
        old = np.array(ranks, dtype=np.int32)
        new = _C.rebalance(array(costs), world_size, old, target, equal_counts)
        expected = reference.rebalance(costs, world_size, ranks, target, equal_counts)
        assert new.tolist() == expected
        assert old.tolist() == ranks
        if equal_counts:
            assert np.bincount(new, minlength=world_size).tolist() == (
                np.bincount(old, minlength=world_size).tolist()
            )

    same_ranks()


@pytest.mark.parametrize("world_size", [4, 8, 64, 256])
def test_rebalancing_moves_at_most_a_twentieth(world_size: int) -> None:
    costs = lognormal_costs(world_size * 128, seed=world_size)
    ranks = np.arange(len(costs)) % world_size
    result = rebalance(costs, ranks, world_size, tolerance=0.05)
    assert result.before > 1.05 >= result.after
    assert len(result.moved) <= len(costs) // 20
    assert np.array_equal(np.flatnonzero(result.ranks != ranks), result.moved)
    assert loads(costs, result.ranks, world_size).max() == pytest.approx(
        result.after * costs.sum() / world_size
    )


@pytest.mark.parametrize(
    ("costs", "ranks", "tolerance", "message"),
    [
        ([1.0, float("nan")], [0, 1], 0.05, "finite"),
        ([1.0, -1.0], [0, 1], 0.05, "not negative"),
        ([1.0, 1.0], [0, 2], 0.05, "rank 2 of 2 does not exist"),
        ([1.0, 1.0], [0], 0.05, "2 samples, but ranks of 1"),
        ([1.0, 1.0], [0, 1], -0.1, "tolerance"),
    ],
)
def test_rebalancing_refuses_bad_input(
    costs: list[float], ranks: list[int], tolerance: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        rebalance(costs, ranks, 2, tolerance=tolerance)
