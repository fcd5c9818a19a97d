"""The sampler on several processes: equal plans without a word, and disagreement is found."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from freescale_pg import BalancedBatchSampler
from freescale_pg._agreement import RanksDisagreeError
from harness.launch import Launcher


def some_lengths(samples: int) -> npt.NDArray[np.int64]:
    normal = np.random.default_rng(0).standard_normal(samples)
    return np.rint(50 * np.exp(normal)).astype(np.int64)


def batches_of_epoch(rank: int, size: int, counts: Any) -> list[list[int]]:
    sampler = BalancedBatchSampler(some_lengths(70), 4, counts=counts)
    sampler.set_epoch(1)
    return list(sampler)


@pytest.mark.parametrize("counts", ["equal", "uneven"])
def test_ranks_share_out_the_data(launch: Launcher, counts: str) -> None:
    batches = launch(batches_of_epoch, 3, counts)
    assert [len(of_rank) for of_rank in batches] == [6, 6, 6]
    everything = [index for of_rank in batches for batch in of_rank for index in batch]
    assert set(everything) == set(range(70))
    assert len(everything) - 70 <= 2


def check_disagreement(rank: int, size: int, name: str, values: list[Any], message: str) -> None:
    """Rank r is given ``values[r]``; all must learn of it, and go on afterwards."""
    arguments: dict[str, Any] = {"lengths": some_lengths(70), "batch_size": 4, name: values[rank]}
    sampler = BalancedBatchSampler(**arguments)
    with pytest.raises(RanksDisagreeError) as caught:
        next(iter(sampler))
    assert message in str(caught.value)
    together = torch.ones(1)
    dist.all_reduce(together)
    assert together.item() == size


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("seed", [0, 7, 0], "seed: 0 on ranks 0, 2 and 7 on rank 1"),
        ("batch_size", [4, 4, 5], "batch size: 4 on ranks 0, 1 and 5 on rank 2"),
        (
            "counts",
            ["equal", "uneven", "equal"],
            "counts: equal on ranks 0, 2 and uneven on rank 1",
        ),
        ("drop_last", [True, False, False], "drop_last: True on rank 0 and False on ranks 1, 2"),
        (
            "max_tokens_per_rank",
            [None, 10**6, None],
            "max_tokens_per_rank: None on ranks 0, 2 and 1000000 on rank 1",
        ),
        (
            "lengths",
            [[1] * 30, [1] * 29 + [2], [1] * 30],
            "lengths: 30 samples, sum 30, digest ",
        ),
        ("num_replicas", [3, 4, 3], "number of ranks: 3 on ranks 0, 2 and 4 on rank 1"),
        ("rank", [0, 1, 1], "rank: given as [0, 1, 1], of 3"),
    ],
)
def test_all_ranks_learn_of_a_difference(
    launch: Launcher, name: str, values: list[Any], message: str
) -> None:
    launch(check_disagreement, 3, name, values, message)


def check_cost_models(rank: int, size: int) -> None:
    scale = 1.0 if rank == 0 else 2.0
    sampler = BalancedBatchSampler(some_lengths(70), 4, cost_model=lambda x: x**scale)
    with pytest.raises(RanksDisagreeError, match="digest of the costs"):
        next(iter(sampler))


def test_all_ranks_learn_of_different_cost_models(launch: Launcher) -> None:
    launch(check_cost_models, 2)


def check_local_problem(rank: int, size: int) -> None:
    lengths = torch.from_numpy(some_lengths(70))
    sampler = BalancedBatchSampler(lengths, 4)
    if rank == 1:
        lengths[3] += 1
    with pytest.raises(RanksDisagreeError, match=r"^rank 1: the lengths have changed"):
        next(iter(sampler))


def test_all_ranks_learn_of_a_problem_that_one_has(launch: Launcher) -> None:
    launch(check_local_problem, 3)


def check_places(rank: int, size: int) -> None:
    sampler = BalancedBatchSampler(some_lengths(70), 4)
    list(sampler)  # compared, and equal
    sampler.load_state_dict(sampler.state_dict(step=rank))
    with pytest.raises(RanksDisagreeError, match="first step: 0 on rank 0 and 1 on rank 1"):
        next(iter(sampler))


def test_all_ranks_learn_of_different_places(launch: Launcher) -> None:
    launch(check_places, 2)


def check_silence(rank: int, size: int) -> None:
    """Without the comparison, and after it, one rank may iterate alone."""
    alone = BalancedBatchSampler(some_lengths(70), 4, check_ranks=False)
    together = BalancedBatchSampler(some_lengths(70), 4)
    list(together)
    if rank == 0:
        list(alone)
        list(together)


def test_planning_does_not_communicate(launch: Launcher) -> None:
    launch(check_silence, 2)


def check_subgroup(rank: int, size: int) -> list[list[int]]:
    """Two groups of two, each sharing the data out within itself."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    return list(BalancedBatchSampler(some_lengths(20), 5, group=groups[rank // 2]))


def test_a_group_of_its_own(launch: Launcher) -> None:
    first, second, third, fourth = launch(check_subgroup, 4)
    assert (first, second) == (third, fourth)
    assert sorted(index for batch in first + second for index in batch) == list(range(20))


def check_gradient(rank: int, size: int, counts: Any) -> None:
    """DDP with weighted means against the gradient of the global batch."""
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(22, 3, generator=random, dtype=torch.float64)
    weights = torch.randn(1, 3, generator=random, dtype=torch.float64)
    model = torch.nn.Linear(3, 1, bias=False, dtype=torch.float64)
    model.weight.data.copy_(weights)
    parallel = DistributedDataParallel(model)
    sampler = BalancedBatchSampler(some_lengths(22), 3, counts=counts)
    for step, batch in enumerate(sampler):
        model.zero_grad()
        real = sampler.real_samples(step)
        losses = parallel(inputs[batch]).square().flatten()
        loss = losses[:real].sum() / max(real, 1) * sampler.loss_weight(step)
        loss.backward()
        plan = sampler.plan(step)
        alone = weights.clone().requires_grad_()
        (inputs[plan.indices[: plan.real]] @ alone.T).square().mean().backward()
        assert alone.grad is not None
        torch.testing.assert_close(model.weight.grad, alone.grad, rtol=1e-12, atol=0)


@pytest.mark.parametrize("counts", ["equal", "uneven"])
def test_gradients_are_those_of_the_global_batch(launch: Launcher, counts: str) -> None:
    """The last of the three global batches has four samples, so two duplicates fill it up."""
    launch(check_gradient, 3, counts)
