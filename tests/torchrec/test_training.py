"""A recommender of TorchRec trains over freescale as over gloo, and as it does unsharded."""

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.distributed as dist

import dlrm
from harness.launch import Launcher, RanksFailed

Logits = npt.NDArray[np.float32]

STEPS = 5
SAMPLES = 6
# All tables in each way that they can be sharded, with bags and with lists.
TRAINERS = sorted(dlrm.PIPELINES)


def samples_of(rank: int, uneven: int) -> int:
    return SAMPLES + uneven * rank


def check_training(
    rank: int, size: int, uneven: int, pooled: tuple[str, ...] = dlrm.POOLED
) -> dict[str, list[Logits]]:
    """Trains in every way; returns the logits of this rank's samples at each step."""
    logits = {}
    for name in TRAINERS:
        model = dlrm.make_model(pooled=pooled)
        batches = [dlrm.make_batch(rank, step, samples_of(rank, uneven)) for step in range(STEPS)]
        sharded = dlrm.shard(model)
        trainer = dlrm.PIPELINES[name](sharded, dlrm.optimizer_of(sharded))
        logits[name] = dlrm.train(trainer, batches)
    return logits


@cache
def unsharded(size: int, uneven: int, pooled: tuple[str, ...]) -> list[list[Logits]]:
    """The logits by rank and step of one process that sees the batches of all ranks."""
    model = dlrm.make_model(pooled=pooled)
    optimizer = torch.optim.SGD(model.parameters(), lr=dlrm.RATE)
    logits: list[list[Logits]] = [[] for _ in range(size)]
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(size):
            batch = dlrm.make_batch(rank, step, samples_of(rank, uneven))
            loss, output = model(batch)
            # Each rank takes the mean of its own samples, and the gradients are averaged by rank.
            (loss / size).backward()
            logits[rank].append(output.numpy())
        optimizer.step()
    return logits


def check_against_unsharded(
    found: list[Any], uneven: int, pooled: tuple[str, ...] = dlrm.POOLED
) -> None:
    """To some units of float32's precision: there, sums over samples have another order."""
    expected = unsharded(len(found), uneven, pooled)
    for rank, by_trainer in enumerate(found):
        for name, logits in by_trainer.items():
            for step, (actual, right) in enumerate(zip(logits, expected[rank], strict=True)):
                what = f"{name}, rank {rank}, step {step}"
                np.testing.assert_allclose(actual, right, 1e-6, 1e-6, err_msg=what)


def assert_same_bits(actual: list[Logits], expected: list[Logits], what: str) -> None:
    for step, (left, right) in enumerate(zip(actual, expected, strict=True)):
        same = left.view(np.int32) == right.view(np.int32)
        assert same.all(), f"{what}, step {step}: {left} is not {right}"


def test_same_as_gloo(launch: Launcher) -> None:
    """With two ranks every sum has two terms, which have one order: not a bit may differ."""
    ours = launch(check_training, 2, 0)
    theirs = launch(check_training, 2, 0, backend="gloo")
    for rank in range(2):
        for name in TRAINERS:
            assert_same_bits(ours[rank][name], theirs[rank][name], f"{name}, rank {rank}")
    check_against_unsharded(ours, 0)


@pytest.mark.parametrize("size", [1, 3, 4])
def test_same_as_unsharded(launch: Launcher, size: int) -> None:
    check_against_unsharded(launch(check_training, size, 0), 0)


def test_tables_by_rows_of_one_host(launch: Launcher) -> None:
    """TorchRec makes groups of its own for them, within hosts and across."""
    pooled = (dlrm.ON_ONE_HOST, "table_wise")
    environment = {"LOCAL_WORLD_SIZE": "2"}
    found = launch(check_training, 4, 0, pooled, environment=environment)
    check_against_unsharded(found, 0, pooled)


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_with_batches_of_different_sizes(launch: Launcher, size: int) -> None:
    """Which gloo cannot do, see below; so one process is the reference."""
    check_against_unsharded(launch(check_training, size, 2), 2)


def test_gloo_cannot_do_batches_of_different_sizes(launch: Launcher) -> None:
    """Of row-wise bags the backward pass gathers gradients of different sizes."""
    with pytest.raises(RanksFailed, match="ProcessGroupGloo::allgather: invalid tensor size"):
        launch(check_training, 2, 2, backend="gloo")


def test_ways_to_train_agree(launch: Launcher) -> None:
    """A pipeline changes when things are exchanged, and not a bit of what comes out."""
    for logits in launch(check_training, 2, 1):
        for name in TRAINERS:
            assert_same_bits(logits[name], logits["plain"], name)


def check_early_end(rank: int, size: int, name: str) -> str:
    model = dlrm.make_model()
    sharded = dlrm.shard(model)
    trainer = dlrm.PIPELINES[name](sharded, dlrm.optimizer_of(sharded))
    batches = [dlrm.make_batch(rank, step, SAMPLES) for step in range(STEPS - 3 * rank)]
    try:
        dlrm.train(trainer, batches)
    except dist.DistBackendError as error:
        return str(error)
    return ""


def test_rank_whose_data_end_early(launch: Launcher) -> None:
    """The other rank would wait for it."""
    goes_on, ended = launch(check_early_end, 2, "plain")
    assert "rank 1" in goes_on
    assert ended == ""


def test_rank_of_a_pipeline_whose_data_end_early(launch: Launcher) -> None:
    """It still trains on its last batches, and the other one's ids come for its vectors."""
    goes_on, ended = launch(check_early_end, 2, "sparse_dist")
    assert "rank 1" in goes_on
    assert "rank 0" in ended
