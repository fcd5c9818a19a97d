"""The batch sampler: what every rank gets, in which step, and how to go on after a stop."""

import json
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import freescale_pg
from freescale_pg import BalancedBatchSampler
from freescale_pg.balance import Quadratic

pytestmark = pytest.mark.filterwarnings("ignore:step .* In any assignment its rank takes")

PROFILE = settings(max_examples=150, derandomize=True, database=None, deadline=None)


def some_lengths(samples: int, seed: int = 0) -> npt.NDArray[np.int64]:
    normal = np.random.default_rng(seed).standard_normal(samples)
    return np.minimum(np.rint(200 * np.exp(normal)), 8192).astype(np.int64)


def samplers(
    lengths: Any, batch_size: int, world_size: int, **options: Any
) -> list[BalancedBatchSampler]:
    """One for each rank."""
    return [
        BalancedBatchSampler(lengths, batch_size, num_replicas=world_size, rank=rank, **options)
        for rank in range(world_size)
    ]


def passes(ranks: Iterable[BalancedBatchSampler]) -> list[list[list[int]]]:
    """All batches of a pass, by rank and step."""
    return [list(sampler) for sampler in ranks]


class Indices(Dataset[int]):
    """Gives the index of a sample as its content."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> int:
        return index


# --- What the ranks get ---------------------------------------------------------------------------


@PROFILE
@given(
    samples=st.integers(1, 200),
    world_size=st.integers(1, 6),
    batch_size=st.integers(1, 7),
    drop_last=st.booleans(),
    counts=st.sampled_from(["equal", "uneven"]),
    shuffle=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_every_sample_once_and_the_same_number_of_steps(
    samples: int,
    world_size: int,
    batch_size: int,
    drop_last: bool,
    counts: str,
    shuffle: bool,
    epoch: int,
) -> None:
    whole = world_size * batch_size
    if samples < (whole if drop_last else world_size):
        return
    options = {"drop_last": drop_last, "counts": counts, "shuffle": shuffle}
    ranks = samplers(some_lengths(samples), batch_size, world_size, **options)
    for sampler in ranks:
        sampler.set_epoch(epoch)
    batches = passes(ranks)
    steps = samples // whole if drop_last else -(-samples // whole)
    assert [len(of_rank) for of_rank in batches] == [steps] * world_size
    assert [len(sampler) for sampler in ranks] == [steps] * world_size
    seen: list[int] = []
    for step in range(steps):
        real = [s.real_samples(step) for s in ranks]
        weights = [s.loss_weight(step) for s in ranks]
        assert weights == pytest.approx([world_size * n / sum(real) for n in real])
        of_step = [batches[rank][step] for rank in range(world_size)]
        assert all(of_step)
        if counts == "equal":
            assert len({len(batch) for batch in of_step}) == 1
        kept = [i for batch, n in zip(of_step, real, strict=True) for i in batch[:n]]
        assert len(kept) == min(whole, samples - step * whole)
        # What pads a batch is in the same global batch already.
        assert {i for batch in of_step for i in batch} == set(kept)
        seen += kept
    assert len(set(seen)) == len(seen) == (steps * whole if drop_last else samples)


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("counts", ["equal", "uneven"])
def test_global_batches_are_those_of_distributed_sampler(counts: str, drop_last: bool) -> None:
    """Without shuffling both go through the same order, so each step must have the same samples."""
    samples, world_size, batch_size = 103, 4, 6
    ranks = samplers(
        some_lengths(samples),
        batch_size,
        world_size,
        shuffle=False,
        drop_last=drop_last,
        counts=counts,
    )
    plain = [
        list(DistributedSampler(Indices(samples), world_size, rank, shuffle=False))
        for rank in range(world_size)
    ]
    for step in range(len(ranks[0])):
        cut = slice(step * batch_size, (step + 1) * batch_size)
        expected = {index for indices in plain for index in indices[cut]}
        got = {index for batches in passes(ranks) for index in batches[step]}
        if step == len(ranks[0]) - 1 and not drop_last:
            expected -= {0}  # DistributedSampler pads with the first sample
        assert got == expected


def test_weighted_rank_means_give_the_global_mean() -> None:
    """As DDP averages; in the last step with duplicates, and with uneven counts."""
    losses = np.random.default_rng(3).standard_normal(45)
    for counts in ("equal", "uneven"):
        ranks = samplers(some_lengths(45), 4, 4, counts=counts)
        batches = passes(ranks)
        for step in range(len(ranks[0])):
            average, everything = 0.0, []
            for sampler, of_rank in zip(ranks, batches, strict=True):
                real = of_rank[step][: sampler.real_samples(step)]
                everything += real
                mean = losses[real].mean() if real else 0.0
                average += sampler.loss_weight(step) * mean / 4
            assert average == pytest.approx(losses[everything].mean(), abs=1e-14)


def test_a_rank_with_duplicates_only_has_weight_zero() -> None:
    ranks = samplers([5, 1, 3, 4, 2], 1, 4, shuffle=False)
    last = [of_rank[1] for of_rank in passes(ranks)]
    assert last == [[4], [4], [4], [4]]
    assert sorted(sampler.real_samples(1) for sampler in ranks) == [0, 0, 0, 1]
    assert sorted(sampler.loss_weight(1) for sampler in ranks) == [0.0, 0.0, 0.0, 4.0]


def test_duplicates_are_those_of_the_cheapest_sample() -> None:
    ranks = samplers([4, 4, 4, 4, 9, 1, 5], 2, 2, shuffle=False)
    last = [of_rank[1] for of_rank in passes(ranks)]
    assert sorted(index for batch in last for index in batch) == [4, 5, 5, 6]
    for sampler, batch in zip(ranks, last, strict=True):
        real = batch[: sampler.real_samples(1)]
        assert len(set(real)) == len(real)


def test_samples_stay_in_the_order_of_the_epoch() -> None:
    """A batch sorted by length would be another input to whatever depends on the order."""
    for of_rank in passes(samplers(some_lengths(64), 8, 4, shuffle=False)):
        for batch in of_rank:
            assert batch == sorted(batch)


def test_each_epoch_has_an_order_of_its_own_and_the_seed_another() -> None:
    def order(seed: int, epoch: int) -> list[list[int]]:
        (sampler,) = samplers(some_lengths(64), 8, 1, seed=seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert order(0, 0) == order(0, 0)
    assert len({json.dumps(order(s, e)) for s in range(3) for e in range(3)}) == 9


def test_balance_is_near_the_floor() -> None:
    ranks = samplers(some_lengths(8 * 64 * 4), 64, 8, cost_model=Quadratic(1, 1 / 1024))
    list(ranks[0])
    stats = ranks[0].stats()
    assert stats.steps == 4
    assert stats.after <= 1.002 * stats.floor
    assert stats.before > 1.1


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_lengths_may_sum_beyond_32_bits(dtype: type[np.generic]) -> None:
    scale = 2**31 // 1000
    small = np.arange(1, 8 * 8 * 2 + 1) % 999 + 1
    ranks = samplers((small * scale).astype(dtype), 8, 8, shuffle=False)
    assert passes(ranks) == passes(samplers(small, 8, 8, shuffle=False))
    assert 1 <= ranks[0].stats().after < ranks[0].stats().before


def test_costs_may_be_given_in_the_place_of_lengths() -> None:
    lengths = some_lengths(96)
    costs = lengths + lengths.astype(np.float64) ** 2 / 1024
    by_model = samplers(lengths, 4, 4, cost_model=Quadratic(1, 1 / 1024))
    assert passes(samplers(costs, 4, 4)) == passes(by_model)
    assert passes(samplers(lengths, 4, 4, cost_model=lambda x: x + x**2 / 1024)) == passes(by_model)
    assert passes(samplers(lengths, 4, 4)) != passes(by_model)


# --- Memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("counts", ["equal", "uneven"])
def test_tokens_stay_within_the_limit(counts: str) -> None:
    lengths = some_lengths(8 * 16 * 3)
    options: dict[str, Any] = {"counts": counts, "cost_model": lambda x: 1 / (1 + x)}
    free = samplers(lengths, 16, 8, shuffle=False, **options)
    sums = [[lengths[b].sum() for b in of_rank] for of_rank in passes(free)]
    most = int(max(np.mean(sums, axis=0)) * 1.3)
    assert np.max(sums) > most
    ranks = samplers(lengths, 16, 8, shuffle=False, max_tokens_per_rank=most, **options)
    batches = passes(ranks)
    assert max(lengths[b].sum() for of_rank in batches for b in of_rank) <= most
    for step in range(3):
        together = sorted(index for of_rank in batches for index in of_rank[step])
        assert together == list(range(step * 128, (step + 1) * 128))


def test_a_limit_that_cannot_be_kept_names_the_step() -> None:
    ranks = samplers([10] * 12 + [50] * 4, 4, 2, shuffle=False, max_tokens_per_rank=60)
    for sampler in ranks:
        batches = iter(sampler)
        next(batches)
        with pytest.raises(
            ValueError,
            match="step 1 of epoch 0: a rank must hold 120 tokens, more than the 60 allowed: 240",
        ):
            next(batches)


# --- Stop and resume ------------------------------------------------------------------------------


def test_resume_goes_on_with_the_next_step() -> None:
    lengths = some_lengths(110)
    (whole,) = samplers(lengths, 8, 1)
    whole.set_epoch(3)
    expected = list(whole)
    for stop in range(len(whole) + 1):
        (first,) = samplers(lengths, 8, 1)
        first.set_epoch(3)
        batches = iter(first)
        done = [next(batches) for _ in range(stop)]
        state = json.loads(json.dumps(first.state_dict()))
        (second,) = samplers(lengths, 8, 1)
        second.load_state_dict(state)
        assert (second.epoch, second.start_step) == (3, stop)
        second.set_epoch(3)  # as a training loop does
        assert done + list(second) == expected
        # The pass after the resumed one is whole again.
        assert second.start_step == 0
        assert list(second) == expected


def test_state_of_steps_trained_on_when_a_loader_fetches_ahead() -> None:
    (sampler,) = samplers(some_lengths(64), 8, 1)
    expected = list(sampler)
    state = sampler.state_dict(step=3)
    (second,) = samplers(some_lengths(64), 8, 1)
    second.load_state_dict(state)
    assert list(second) == expected[3:]
    with pytest.raises(ValueError, match=r"step must be 0 … 8, got 9"):
        sampler.state_dict(step=9)


def test_another_epoch_drops_the_place() -> None:
    (sampler,) = samplers(some_lengths(64), 8, 1)
    sampler.load_state_dict(sampler.state_dict(step=3))
    sampler.set_epoch(1)
    assert (sampler.epoch, sampler.start_step) == (1, 0)
    assert len(list(sampler)) == 8


def test_a_pass_that_was_given_up_does_not_count() -> None:
    (sampler,) = samplers(some_lengths(64), 8, 1)
    expected = list(sampler)
    next(iter(sampler))
    assert list(sampler) == expected


def test_a_pass_keeps_its_epoch() -> None:
    (sampler,) = samplers(some_lengths(64), 8, 1)
    expected = list(sampler)
    batches = iter(sampler)
    got = [next(batches)]
    sampler.set_epoch(1)
    got += list(batches)
    assert got == expected
    assert sampler.state_dict()["step"] == 0


def test_the_number_of_ranks_may_change_while_the_global_batch_stays() -> None:
    lengths = some_lengths(200)
    state = samplers(lengths, 4, 8)[0].state_dict(step=2)
    plan = {}
    for world_size, batch_size in ((8, 4), (2, 16), (1, 32)):
        ranks = samplers(lengths, batch_size, world_size)
        for sampler in ranks:
            sampler.load_state_dict(state)
        steps = zip(*passes(ranks), strict=True)
        plan[world_size] = [sorted({index for batch in step for index in batch}) for step in steps]
    assert len(plan[1]) == 5
    assert plan[8] == plan[2] == plan[1]


def test_resume_takes_the_seed_of_the_state() -> None:
    lengths = some_lengths(64)
    (first,) = samplers(lengths, 8, 1, seed=5)
    (second,) = samplers(lengths, 8, 1, seed=6)
    second.load_state_dict(first.state_dict())
    assert list(second) == list(first)


def test_resume_forgets_the_weights_of_another_seed() -> None:
    lengths = some_lengths(90)
    first, second = (samplers(lengths, 6, 3, counts="uneven", seed=seed) for seed in (5, 6))
    for sampler in second:
        list(sampler)
        sampler.load_state_dict(first[0].state_dict())
    for step in range(5):
        expected = [sampler.loss_weight(step) for sampler in first]
        assert [sampler.loss_weight(step) for sampler in second] == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "its version is 2, this sampler's is 1"),
        ({"lengths_digest": "0" * 16}, "its lengths digest is 0000000000000000, this sampler's is"),
        ({"dataset_length": 63}, "its dataset length is 63, this sampler's is 64"),
        ({"global_batch": 16}, "its global batch is 16, this sampler's is 8"),
        ({"shuffle": False}, "its shuffle is False, this sampler's is True"),
        ({"drop_last": True}, "its drop last is True, this sampler's is False"),
        ({"step": 9}, r"step of the state must be 0 … 8, got 9"),
        ({"epoch": -1}, "epoch of the state must be 0 or more, got -1"),
    ],
)
def test_a_state_of_another_run_is_refused(change: dict[str, Any], message: str) -> None:
    (sampler,) = samplers(some_lengths(64), 8, 1)
    state = sampler.state_dict(step=2)
    with pytest.raises(ValueError, match=message):
        sampler.load_state_dict({**state, **change})
    assert sampler.start_step == 0
    with pytest.raises(ValueError, match="its version is None"):
        sampler.load_state_dict({})


def test_weights_are_known_long_before_they_are_needed() -> None:
    """A loader may have fetched a whole epoch before the first of its batches is trained on."""
    ranks = samplers(some_lengths(70), 4, 3, counts="uneven")
    twins = samplers(some_lengths(70), 4, 3, counts="uneven")
    for sampler, twin in zip(ranks, twins, strict=True):
        list(sampler)
        for step in range(len(sampler)):
            assert sampler.loss_weight(step) == twin.loss_weight(step)
            assert sampler.real_samples(step) == len(
                twin.plan(step).samples_of(ranks.index(sampler))
            )
        sampler.set_epoch(1)
        twin.set_epoch(1)
        assert sampler.loss_weight(2) == twin.loss_weight(2)


# --- Under loaders --------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_dataloader_gives_the_batches_of_the_sampler(workers: int) -> None:
    sampler, twin = (samplers(some_lengths(60), 4, 2)[1] for _ in range(2))
    loader = DataLoader(Indices(60), batch_sampler=sampler, num_workers=workers)
    assert len(loader) == 8
    for epoch in range(2):
        sampler.set_epoch(epoch)
        twin.set_epoch(epoch)
        assert [batch.tolist() for batch in loader] == list(twin)


@pytest.mark.parametrize("workers", [0, 2])
def test_dataloader_resumes(workers: int) -> None:
    """A loader asks for a pass more than once before it uses one."""
    sampler, twin = (samplers(some_lengths(60), 4, 2)[1] for _ in range(2))
    sampler.load_state_dict(twin.state_dict(step=3))
    loader = DataLoader(Indices(60), batch_sampler=sampler, num_workers=workers)
    assert [batch.tolist() for batch in loader] == list(twin)[3:]
    assert [batch.tolist() for batch in loader] == list(twin)


def stateful_loader(sampler: BalancedBatchSampler, workers: int) -> Any:
    module = pytest.importorskip(
        "torchdata.stateful_dataloader", reason="torchdata is not installed"
    )
    return module.StatefulDataLoader(Indices(60), batch_sampler=sampler, num_workers=workers)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [1, 3, 7, 8])
def test_stateful_dataloader_resumes_within_an_epoch(stop: int, workers: int) -> None:
    first, second, twin = (samplers(some_lengths(60), 4, 2)[1] for _ in range(3))
    loader = stateful_loader(first, workers)
    first.set_epoch(2)
    batches = iter(loader)
    for _ in range(stop):
        next(batches)
    state = loader.state_dict()
    del batches, loader

    loader = stateful_loader(second, workers)
    loader.load_state_dict(state)
    for epoch in (2, 3):
        second.set_epoch(epoch)
        twin.set_epoch(epoch)
        expected = list(twin)[stop if epoch == 2 else 0 :]
        assert [batch.tolist() for batch in loader] == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_stateful_dataloader_resumes_after_an_epoch(workers: int) -> None:
    first, second, twin = (samplers(some_lengths(60), 4, 2)[1] for _ in range(3))
    loader = stateful_loader(first, workers)
    first.set_epoch(2)
    assert len(list(loader)) == 8
    state = loader.state_dict()

    loader = stateful_loader(second, workers)
    loader.load_state_dict(state)
    for epoch in (3, 4):
        second.set_epoch(epoch)
        twin.set_epoch(epoch)
        assert [batch.tolist() for batch in loader] == list(twin)


@pytest.mark.parametrize("workers", [0, 2])
def test_stateful_dataloader_repeats_an_epoch_that_nobody_changes(workers: int) -> None:
    """Like a loop that was not interrupted and never calls ``set_epoch``."""
    first, second, twin = (samplers(some_lengths(60), 4, 2)[1] for _ in range(3))
    loader = stateful_loader(first, workers)
    assert len(list(loader)) == 8
    state = loader.state_dict()

    loader = stateful_loader(second, workers)
    loader.load_state_dict(state)
    for _ in range(2):
        assert [batch.tolist() for batch in loader] == list(twin)


# --- What it says ---------------------------------------------------------------------------------


def test_stats_are_ratios_of_the_heaviest_rank() -> None:
    lengths = [1, 9, 5, 5, 3, 7, 2, 8, 4, 4]
    sampler = samplers(lengths, 2, 2, shuffle=False, drop_last=True)[0]
    assert (sampler.stats().steps, sampler.stats().before, sampler.stats().after) == (0, 1.0, 1.0)
    list(sampler)
    stats = sampler.stats()
    # In turn: 1+5 | 9+5, then 3+2 | 7+8. Planned: 10 | 10, 10 | 10.
    assert stats.batches.tolist() == [[1.4, 1.0, 1.0], [1.5, 1.0, 1.0]]
    assert (stats.epoch, stats.steps) == (0, 2)
    assert (stats.before, stats.after, stats.floor) == (29 / 20, 1.0, 1.0)
    sampler.set_epoch(4)
    next(iter(sampler))
    assert (sampler.stats().epoch, sampler.stats().steps) == (4, 1)


def test_stats_of_a_long_epoch_keep_the_last_batches() -> None:
    (sampler,) = samplers(np.ones(3000), 1, 1)
    list(sampler)
    assert sampler.stats().steps == 3000
    assert sampler.stats().batches.shape == (1024, 3)


def test_floor_counts_the_companions_of_the_longest() -> None:
    lengths = [100, 1, 2, 3, 4, 5, 6, 7]
    equal = samplers(lengths, 4, 2, shuffle=False)[0]
    assert equal.plan(0).balance.floor == pytest.approx(106 / 64)
    assert equal.plan(0).balance.after == pytest.approx(106 / 64)
    uneven = samplers(lengths, 4, 2, shuffle=False, counts="uneven")[0]
    assert uneven.plan(0).balance.after == pytest.approx(100 / 64)


def test_a_sample_that_dominates_is_reported_once() -> None:
    lengths = [10] * 32
    lengths[21] = 1000
    lengths[27] = 1000
    ranks = samplers(lengths, 4, 2, shuffle=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        passes(ranks)
        list(ranks[0])
    assert len(caught) == 1
    message = str(caught[0].message)
    assert "step 2 of epoch 0: sample 21 costs 1000" in message
    assert "the mean load of a rank is 535" in message
    assert "1.93 times the mean" in message
    for cure in ("Cap the length", "split the sample", "global batch larger"):
        assert cure in message


def test_the_rest_of_an_epoch_is_not_reported() -> None:
    """Whatever is left over may be one long sample: no setting helps."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        passes(samplers([10] * 16 + [1000, 10, 10], 4, 2, shuffle=False))


def test_nothing_is_reported_where_the_load_can_be_shared() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        passes(samplers(some_lengths(2 * 512), 128, 2))


# --- Bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"lengths": []}, ValueError, "lengths is empty"),
        ({"lengths": [1]}, ValueError, "1 samples are too few for 2 ranks"),
        (
            {"drop_last": True, "batch_size": 5},
            ValueError,
            r"9 samples do not fill a global batch of 2 ranks × 5 = 10.*no steps",
        ),
        ({"batch_size": 0}, ValueError, "batch_size must be 1 or more, got 0"),
        ({"batch_size": 2.0}, TypeError, "batch_size must be a whole number, got 2.0"),
        ({"num_replicas": 0}, ValueError, "num_replicas must be 1 or more, got 0"),
        ({"rank": 2}, ValueError, r"rank must be 0 … 1, got 2"),
        ({"rank": -1}, ValueError, r"rank must be 0 … 1, got -1"),
        ({"seed": -1}, ValueError, "seed must be 0 or more, got -1"),
        ({"seed": 2**63}, ValueError, "seed must be 0 or more"),
        ({"counts": "odd"}, ValueError, "counts must be 'equal' or 'uneven', got 'odd'"),
        ({"max_tokens_per_rank": 0}, ValueError, "max_tokens_per_rank must be 1 or more, got 0"),
        ({"rank": None}, ValueError, "without a process group"),
    ],
)
def test_bad_arguments_are_refused(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    arguments = {"lengths": [3] * 9, "batch_size": 2, "num_replicas": 2, "rank": 0, **options}
    with pytest.raises(error, match=message):
        BalancedBatchSampler(**arguments)


def test_steps_that_do_not_exist_are_refused() -> None:
    (sampler,) = samplers(some_lengths(64), 8, 1)
    for ask in (sampler.plan, sampler.loss_weight, sampler.real_samples):
        for step in (-1, 8):
            with pytest.raises(IndexError, match=f"step {step} does not exist"):
                ask(step)


def test_lengths_that_change_between_epochs_are_refused() -> None:
    lengths = torch.from_numpy(some_lengths(64))
    (sampler,) = samplers(lengths, 8, 1)
    list(sampler)
    lengths[5] += 1
    with pytest.raises(ValueError, match=r"lengths have changed.*64 samples, sum .* then, 64"):
        list(sampler)


def test_a_length_that_becomes_impossible_names_step_and_sample() -> None:
    lengths = np.ones(32)
    (sampler,) = samplers(lengths, 8, 1, shuffle=False)
    batches = iter(sampler)
    next(batches)
    lengths[13] = np.nan
    with pytest.raises(ValueError, match=r"step 1 of epoch 0: lengths\[13\] is nan"):
        next(batches)


def test_an_impossible_cost_names_step_and_sample() -> None:
    (sampler,) = samplers([4, 5, 6, 7], 2, 1, shuffle=False, cost_model=lambda x: 5.5 - x)
    batches = iter(sampler)
    next(batches)
    with pytest.raises(ValueError, match=r"step 1 of epoch 0: .* -0\.5 for sample 2 of length 6"):
        next(batches)


def test_package_exports_the_sampler() -> None:
    assert freescale_pg.BalancedBatchSampler is BalancedBatchSampler
    assert freescale_pg.balance.BalancedBatchSampler is BalancedBatchSampler
