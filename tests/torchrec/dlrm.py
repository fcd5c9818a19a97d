"""A small recommender like DLRM, its batches, and the ways to shard and to train it."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
import torchrec
from torch import nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torchrec.distributed.comm import get_local_size
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import (
    column_wise,
    construct_module_sharding_plan,
    data_parallel,
    row_wise,
    table_row_wise,
    table_wise,
)
from torchrec.distributed.train_pipeline import TrainPipelineBase, TrainPipelineSparseDist
from torchrec.distributed.train_pipeline.train_pipelines import TrainPipelineSparseDistLite
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import KeyedOptimizerWrapper
from torchrec.streamable import Pipelineable

CPU = torch.device("cpu")
WIDTH = 8
ROWS = 50
DENSE = 5
# High, so that a gradient that is a percent off shows in a few steps.
RATE = 2.0
# A table for each way to shard it. Not data-parallel ones with a vector for each id: on the CPU
# fbgemm's dense kernel pools them all the same, and TorchRec fails, whatever the backend.
POOLED = ("table_wise", "row_wise", "column_wise", "data_parallel")
SEQUENCES = ("table_wise", "row_wise", "column_wise")
# By rows over the ranks of one host: only where a test says how many these are.
ON_ONE_HOST = "table_row_wise"


@dataclass
class Batch(Pipelineable):  # type: ignore[misc]
    """Samples of one rank."""

    dense: torch.Tensor
    ids: Any
    label: torch.Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> "Batch":
        return Batch(self.dense.to(device), self.ids.to(device), self.label.to(device))

    def record_stream(self, stream: torch.Stream) -> None:
        raise AssertionError("there are no streams on the CPU")

    def pin_memory(self) -> "Batch":
        return self


class Model(nn.Module):
    """Dense features and embeddings side by side, two layers, one logit.

    Args:
        pooled: Names of the tables whose vectors are summed up for each sample.
        sequences: Names of the tables with a vector for each id.
    """

    def __init__(
        self, pooled: Sequence[str] = POOLED, sequences: Sequence[str] = SEQUENCES
    ) -> None:
        super().__init__()
        self.pooled = torchrec.EmbeddingBagCollection(
            device=CPU,
            tables=[
                torchrec.EmbeddingBagConfig(
                    name=f"bag_{way}",
                    embedding_dim=WIDTH,
                    num_embeddings=ROWS,
                    feature_names=[f"bag_{way}"],
                )
                for way in pooled
            ],
        )
        self.sequences = torchrec.EmbeddingCollection(
            device=CPU,
            tables=[
                torchrec.EmbeddingConfig(
                    name=f"list_{way}",
                    embedding_dim=WIDTH,
                    num_embeddings=ROWS,
                    feature_names=[f"list_{way}"],
                )
                for way in sequences
            ],
        )
        # Pipelines trace the model, and a trace cannot iterate over what is not there yet.
        self.lists = [f"list_{way}" for way in sequences]
        inputs = DENSE + WIDTH * (len(pooled) + len(sequences))
        self.over = nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        bags = self.pooled(batch.ids).values()
        found = self.sequences(batch.ids)
        sums = [squares(found[name]) for name in self.lists]
        logits = self.over(torch.cat([batch.dense, bags, *sums], dim=1)).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.label)
        return loss, logits.detach()


def squares(jagged: Any) -> torch.Tensor:
    """The sum of squares of each sample's vectors, so that each id has a gradient of its own."""
    lengths = jagged.lengths().long()
    return torch.segment_reduce(jagged.values() ** 2, "sum", lengths=lengths, axis=0)


def make_model(**tables: Sequence[str]) -> Model:
    """The same weights on every rank and in every process."""
    torch.manual_seed(7)
    return Model(**tables)


def make_batch(rank: int, step: int, samples: int) -> Batch:
    """Samples of a rank at a step, which differ by both; some have no ids of a feature."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    names = [f"bag_{way}" for way in (*POOLED, ON_ONE_HOST)] + [f"list_{way}" for way in SEQUENCES]
    lengths = torch.randint(0, 5, (len(names) * samples,), generator=generator)
    values = torch.randint(0, ROWS, (int(lengths.sum()),), generator=generator)
    return Batch(
        dense=torch.randn(samples, DENSE, generator=generator),
        ids=torchrec.KeyedJaggedTensor(keys=names, values=values, lengths=lengths),
        label=torch.randint(0, 2, (samples,), generator=generator).float(),
    )


def in_backward(model: nn.Module) -> list[nn.Parameter]:
    """The tables that are updated in the backward pass; DistributedDataParallel has the others."""
    return [
        parameter
        for name, parameter in model.named_parameters()
        if "embedding" in name and "data_parallel" not in name
    ]


def shard(model: Model, group: dist.ProcessGroup | None = None) -> DistributedModelParallel:
    """Each table in the way that it is named after, the rest under DistributedDataParallel."""
    env = ShardingEnv.from_process_group(group or dist.group.WORLD)
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    apply_optimizer_in_backward(torch.optim.SGD, in_backward(model), {"lr": RATE})
    sharders: list[Any] = [EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()]
    sharded = DistributedModelParallel(model, env, CPU, plan_for(model, env), sharders)
    load(sharded, weights)
    return sharded


def plan_for(model: Model, env: ShardingEnv) -> ShardingPlan:
    """Written down, as TorchRec's planner thinks row-wise bags impossible on the CPU."""
    last = env.world_size - 1
    host = get_local_size(env.world_size)
    generators = {
        "table_wise": table_wise(rank=last),
        "row_wise": row_wise(),
        "column_wise": column_wise(ranks=[last, 0]),
        "data_parallel": data_parallel(),
        ON_ONE_HOST: table_row_wise(host_index=last // host),
    }
    plans = {}
    for kind, part in (("pooled", model.pooled), ("sequences", model.sequences)):
        tables = [name.split(".")[-2] for name, _ in part.named_parameters()]
        plans[kind] = construct_module_sharding_plan(
            part,
            {table: generators[table.split("_", 1)[1]] for table in tables},
            local_size=host,
            world_size=env.world_size,
            device_type="cpu",
        )
    return ShardingPlan(plans)


def load(sharded: nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Copies weights of the whole model to this rank's shards: TorchRec draws its own."""
    for name, value in sharded.state_dict().items():
        if not isinstance(value, ShardedTensor):
            value.detach().copy_(weights[name])
            continue
        for piece in value.local_shards():
            corner = zip(piece.metadata.shard_offsets, piece.metadata.shard_sizes, strict=True)
            part = tuple(slice(offset, offset + length) for offset, length in corner)
            piece.tensor.detach().copy_(weights[name][part])


def optimizer_of(sharded: nn.Module) -> KeyedOptimizerWrapper:
    """Of the dense layers and the data-parallel tables."""
    rest = {
        name: parameter
        for name, parameter in sharded.named_parameters()
        if name.startswith("over") or "data_parallel" in name
    }
    return KeyedOptimizerWrapper(rest, lambda parameters: torch.optim.SGD(parameters, lr=RATE))


class Plain:
    """Trains step by step, with the interface of a pipeline."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model = model
        self.optimizer = optimizer

    def progress(self, batches: Iterator[Batch]) -> Any:
        batch = next(batches)
        self.optimizer.zero_grad()
        loss, output = self.model(batch)
        self.backward(loss)
        self.optimizer.step()
        return output

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()


PIPELINES: dict[str, Any] = {
    "plain": lambda model, optimizer: Plain(model, optimizer),
    "base": lambda model, optimizer: TrainPipelineBase(model, optimizer, CPU),
    "sparse_dist": lambda model, optimizer: TrainPipelineSparseDist(model, optimizer, CPU),
    "lite": lambda model, optimizer: TrainPipelineSparseDistLite(model, optimizer, CPU),
}


def train(trainer: Any, batches: Sequence[Batch]) -> list[npt.NDArray[np.float32]]:
    """Trains on all batches; returns the logits of each, which can be sent to another process."""
    stream = iter(batches)
    logits = []
    with contextlib.suppress(StopIteration):
        while True:
            logits.append(trainer.progress(stream).numpy())
    assert len(logits) == len(batches)
    return logits
