"""The evaluation and the trainer on several ranks against one process."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from freescale_pg import ShardedEmbedding
from harness.launch import Launcher
from seqrec.dataset import SequenceData, from_interactions
from seqrec.evaluate import (
    Metrics,
    RankCounter,
    evaluate_model,
    evaluate_popularity,
    mean_metrics,
)
from seqrec.settings import parse
from seqrec.synthetic import SyntheticSpec, generate
from seqrec.train import Trainer

BACKENDS = ["freescale", "gloo"]


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def whole_table(table: ShardedEmbedding) -> Tensor:
    """Fetches all rows. A rank must return them as an array: tensors would die with it."""
    with torch.no_grad():
        rows: Tensor = table(torch.arange(table.num_embeddings))
    return rows


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
    trainer = Trainer(settings, data)
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
        Trainer(parse([]), data)
    return str(caught.value)


def test_fewer_users_than_ranks_are_refused(launch: Launcher) -> None:
    messages = launch(refuse, 2, "gloo", backend="gloo")
    assert messages == ["2 ranks cannot share 1 users"] * 2
