"""The sharded table, the evaluation and the trainer on several ranks against one process."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from harness.launch import Launcher
from seqrec.dataset import SequenceData, from_interactions
from seqrec.evaluate import (
    Metrics,
    RankCounter,
    evaluate_model,
    evaluate_popularity,
    mean_metrics,
)
from seqrec.exchange import make_exchange
from seqrec.settings import parse
from seqrec.sharded_embedding import ShardedEmbedding
from seqrec.synthetic import SyntheticSpec, generate
from seqrec.train import Trainer

ROWS, DIM = 23, 8
BACKENDS = ["freescale", "gloo"]


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def ids_of(rank: int) -> Tensor:
    """Repeats, ids of all owners, one that no other rank asks for; rank 2 asks for nothing."""
    if rank == 2:
        return torch.empty(0, dtype=torch.int64)
    return torch.tensor([3, 22, 3, 8, 8, 0, 5 + rank, 3])


def whole_table(table: ShardedEmbedding) -> Tensor:
    """Fetches all rows. A rank must return them as an array: tensors would die with it."""
    with torch.no_grad():
        rows: Tensor = table(torch.arange(table.num_embeddings))
    return rows


def embed_and_step(rank: int, world_size: int, backend: str) -> None:
    table = ShardedEmbedding(ROWS, DIM, make_exchange(backend), std=1.0, seed=11)
    reference = torch.nn.Embedding.from_pretrained(whole_table(table), freeze=False)
    every = [ids_of(r) for r in range(world_size)]
    weights = [random(len(ids), DIM, seed=r) for r, ids in enumerate(every)]

    output = table(ids_of(rank))
    assert torch.equal(output, reference(ids_of(rank)))
    (output * weights[rank]).sum().backward()
    losses = [(reference(ids) * weight).sum() for ids, weight in zip(every, weights, strict=True)]
    torch.stack(losses).mean().backward()
    assert table.weight.grad is not None
    assert reference.weight.grad is not None
    torch.testing.assert_close(
        table.weight.grad.to_dense(), reference.weight.grad[rank::world_size]
    )

    torch.optim.SparseAdam(table.parameters(), lr=0.1).step()
    torch.optim.Adam(reference.parameters(), lr=0.1).step()
    torch.testing.assert_close(whole_table(table), reference.weight.detach())


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("chosen", BACKENDS)
def test_sharded_embedding_equals_embedding(launch: Launcher, chosen: str, world_size: int) -> None:
    launch(embed_and_step, world_size, chosen, backend=chosen)


def initial_table(rank: int, world_size: int, backend: str, rows: int) -> NDArray[np.float32]:
    table = ShardedEmbedding(rows, 2, make_exchange(backend), std=0.5, seed=11)
    assert len(table.weight) in (rows // world_size, rows // world_size + 1)
    return whole_table(table).numpy()


def test_initial_table_does_not_depend_on_the_world_size(launch: Launcher) -> None:
    rows = 10_001  # More than two blocks of the initialisation.
    (expected,) = launch(initial_table, 1, "gloo", rows, backend="gloo")
    assert len(np.unique(expected, axis=0)) == rows
    assert abs(float(expected.std()) - 0.5) < 0.01
    for actual in launch(initial_table, 3, "gloo", rows, backend="gloo"):
        assert np.array_equal(actual, expected)


def naive_rank(scores: list[float], target: int, seen: set[int]) -> float:
    rivals = [s for item, s in enumerate(scores) if item != target and item not in seen]
    return sum(s > scores[target] for s in rivals) + sum(s == scores[target] for s in rivals) / 2


@pytest.mark.parametrize("chunk", [3, 40])
def test_ranks_equal_a_naive_count(chunk: int) -> None:
    # Small integers, so that there are ties.
    scores = (random(6, 40, seed=8) * 3).round()
    targets = torch.tensor([0, 39, 5, 17, 17, 20])
    seen = [torch.tensor([1, 2, 30]), torch.arange(38), *([torch.empty(0).long()] * 4)]
    counter = RankCounter(scores[range(6), targets], targets, seen)
    for start in range(0, 40, chunk):
        counter.add(start, scores[:, start : start + chunk].clone())
    expected = [
        naive_rank(row, int(target), set(ids.tolist()))
        for row, target, ids in zip(scores.tolist(), targets, seen, strict=True)
    ]
    assert counter.ranks.tolist() == expected
    assert any(rank % 1 == 0.5 for rank in expected)


def average(rank: int, world_size: int) -> Metrics:
    ranks = [torch.tensor([0.0, 9.5]), torch.tensor([2.0, 10.0, 100.0])]
    return mean_metrics(ranks[rank])


def test_metrics_average_over_all_users(launch: Launcher) -> None:
    expected_ndcg = (1.0 + 1 / 3.523562 + 0.5) / 5  # 3.523562 = log2(11.5)
    for metrics in launch(average, 2, backend="gloo"):
        assert metrics.hit_rate == pytest.approx(3 / 5)
        assert metrics.ndcg == pytest.approx(expected_ndcg, rel=1e-6)


SMALL = SyntheticSpec(users=60, items=120, median_length=15.0)
EASY = SyntheticSpec(users=300, items=400, median_length=25.0, follow=0.7, successors=2)


def synthetic_data(spec: SyntheticSpec) -> SequenceData:
    return from_interactions("synthetic", generate(spec))


def train(
    rank: int, world_size: int, backend: str, spec: SyntheticSpec, options: list[str]
) -> dict[str, Any]:
    data = synthetic_data(spec)
    settings = parse(["--batch-size=12", "--max-length=30", "--lr=0.005", *options])
    trainer = Trainer(settings, data, make_exchange(backend))
    losses = [trainer.epoch(number, lambda: None).loss for number in range(1, settings.epochs + 1)]
    test = data.test(settings.max_length)
    return {
        "losses": losses,
        "table": whole_table(trainer.table).numpy(),
        "metrics": evaluate_model(trainer.model, trainer.table, test, batch_size=16),
        "popularity": evaluate_popularity(test, data.popularity()),
    }


@pytest.mark.parametrize("chosen", BACKENDS)
@pytest.mark.parametrize("negatives", [50, 1000])
def test_number_of_ranks_does_not_change_what_is_learned(
    launch: Launcher, chosen: str, negatives: int
) -> None:
    options = ["--epochs=4", "--dim=16", f"--negatives={negatives}", "--dropout=0.3"]
    (alone,) = launch(train, 1, "gloo", SMALL, options, backend="gloo")
    assert alone["losses"][-1] < alone["losses"][0]
    for result in launch(train, 3, chosen, SMALL, options, backend=chosen):
        assert result["losses"] == pytest.approx(alone["losses"], rel=1e-5)
        assert result["popularity"].ndcg == pytest.approx(alone["popularity"].ndcg)
        # Adam divides by the root of tiny second moments, which turns rounding into more.
        np.testing.assert_allclose(result["table"], alone["table"], rtol=0, atol=1e-3)
        assert result["metrics"].ndcg == pytest.approx(alone["metrics"].ndcg, abs=0.02)


def test_model_learns_what_popularity_cannot(launch: Launcher) -> None:
    options = ["--epochs=6", "--negatives=1000", "--dim=32", "--dropout=0.1"]
    (result,) = launch(train, 1, "gloo", EASY, options, backend="gloo")
    # Measured: 0.44 against 0.11.
    assert result["metrics"].ndcg > 2 * result["popularity"].ndcg


def refuse(rank: int, world_size: int, backend: str) -> str:
    data = SequenceData("test", [torch.arange(9)], num_items=9)
    with pytest.raises(ValueError) as caught:
        Trainer(parse([]), data, make_exchange(backend))
    return str(caught.value)


def test_fewer_users_than_ranks_are_refused(launch: Launcher) -> None:
    messages = launch(refuse, 2, "gloo", backend="gloo")
    assert messages == ["2 ranks cannot share 1 users"] * 2


def account(rank: int, world_size: int, backend: str) -> tuple[int, int, list[int]]:
    exchange = make_exchange(backend)
    rows = torch.ones(2, 3, requires_grad=True)
    exchange.all_to_all(rows).sum().backward()
    exchange.reset()
    splits = [([1, 0], [1, 2]), ([2, 3], [0, 3])]  # Received and sent, by rank.
    received = exchange.all_to_all(torch.ones(3, 3), *splits[rank])
    dist.barrier()
    (row,) = [row for row in exchange.blocked() if row.op == "all_to_all_single"]
    assert row.seconds >= 0
    return row.calls, row.bytes_sent, list(received.shape)


@pytest.mark.parametrize("chosen", BACKENDS)
def test_accounts_count_since_the_last_reset(launch: Launcher, chosen: str) -> None:
    assert launch(account, 2, chosen, backend=chosen) == [(1, 24, [1, 3]), (1, 0, [5, 3])]
