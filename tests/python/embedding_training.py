"""Small trainings of a model on an embedding: plainly, or through an OverlapPipeline."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import embedding_reference as reference
from freescale_pg.embedding import (
    SGD,
    Adam,
    OverlapPipeline,
    RowOptimizer,
    RowwiseAdagrad,
    ShardedEmbedding,
)
from harness.data import bits, numbers

ROWS, DIM = 300, 5
# Rows that any batch may need; of the others, even batches need some and odd ones the rest.
COMMON = 40
OPTIMIZERS: dict[str, Callable[[], RowOptimizer]] = {
    "SGD": lambda: SGD(0.5),
    "RowwiseAdagrad": lambda: RowwiseAdagrad(0.3),
    "Adam": lambda: Adam(0.05),
}


@dataclass(frozen=True)
class Case:
    """One training.

    Attributes:
        optimizer: Name of it.
        shared: Percent of the ids that are drawn from the common rows.
        steps: Batches.
        skipped: Batches that the plain loop leaves out.
        settings: Of the embedding.
    """

    optimizer: str = "SGD"
    shared: int = 50
    steps: int = 200
    skipped: tuple[int, ...] = ()
    sharding: str = "row"
    dedup: bool = True

    def embedding(self) -> ShardedEmbedding:
        return ShardedEmbedding(
            ROWS,
            DIM,
            sharding=self.sharding,  # type: ignore[arg-type]
            dedup=self.dedup,
            optimizer=OPTIMIZERS[self.optimizer](),
        )

    def batch(self, rank: int, step: int) -> Tensor:
        """Of any size; none on any rank at times, and the one before again at others."""
        if step % 10 == 7:
            step -= 1
        count = 0 if step % 17 == 11 else (rank * 7 + step * 5) % 23
        drawn = numbers((3, count), torch.float64, key=("ids", rank, step, self.shared)).abs()
        common = (drawn[0] * 1000).long() % 100 < self.shared
        others = (drawn[1] * 1000).long() % ((ROWS - COMMON) // 2) * 2 + step % 2 + COMMON
        return torch.where(common, (drawn[2] * 1000).long() % COMMON, others)

    def batches(self, rank: int) -> list[Tensor]:
        return [self.batch(rank, step) for step in range(self.steps)]


class Model(nn.Module):
    """Something dense on an embedding; can be told to fail."""

    def __init__(self, embedding: nn.Module, dim: int = DIM) -> None:
        super().__init__()
        self.embedding = embedding
        torch.manual_seed(1)
        self.dense: nn.Module = nn.Linear(dim, 3)

    def forward(self, batch: Any) -> Tensor:
        return F.softplus(self.dense(self.vectors(batch))).sum() / 8

    def vectors(self, batch: Any) -> Tensor:
        vectors: Tensor = self.embedding(batch)
        return vectors


class Training:
    """A model, its optimizers and what came out so far."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.embedding = cast(Any, model.embedding)
        self.dense = torch.optim.Adam(model.dense.parameters(), lr=0.01)
        self.losses: list[Tensor] = []
        self.base: float = self.embedding.optimizer.lr

    def record(self, loss: Tensor) -> None:
        """Keeps a loss, and changes the learning rates for the next step."""
        self.losses.append(loss)
        factor = 1 + math.sin(len(self.losses)) / 2
        self.embedding.optimizer.lr = self.base * factor
        self.dense.param_groups[0]["lr"] = 0.01 * factor

    def plainly(self, batches: Iterable[Any], skipped: Iterable[int] = ()) -> "Training":
        for step, batch in enumerate(batches):
            if step not in skipped:
                loss = self.model(batch)
                loss.backward()
                self.dense.step()
                self.dense.zero_grad()
                self.record(loss.detach())
        return self

    def pipeline(
        self,
        batches: Iterable[Any],
        *,
        overlap: bool = True,
        ids_of: Callable[[Any], Any] = lambda batch: batch,
    ) -> OverlapPipeline:
        return OverlapPipeline(
            self.model,
            self.dense,
            batches,
            embedding=self.embedding,
            ids_of=ids_of,
            overlap=overlap,
        )

    def overlapped(self, batches: Iterable[Any], **settings: Any) -> "Training":
        with self.pipeline(batches, **settings) as steps:
            for loss in steps:
                self.record(loss)
        return self

    def result(self) -> dict[str, Tensor]:
        dense = {f"dense.{name}": p.detach() for name, p in self.model.dense.named_parameters()}
        losses = torch.stack(self.losses) if self.losses else torch.zeros(0)
        return {"losses": losses, **reference.snapshot(self.embedding), **dense}


def new_training(case: Case) -> Training:
    return Training(Model(case.embedding()))


def differences(one: Training, other: Training) -> list[str]:
    """What is not the same to the bit."""
    left, right = one.result(), other.result()
    assert left.keys() == right.keys()
    return [
        name
        for name, value in left.items()
        if value.shape != right[name].shape
        or not torch.equal(bits(value.contiguous()), bits(right[name].contiguous()))
    ]


def assert_same(one: Training, other: Training, what: object) -> None:
    differing = differences(one, other)
    assert not differing, f"{what}: {differing}"
