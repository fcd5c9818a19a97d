"""Trains a small DLRM of TorchRec on synthetic clicks, its exchanges prioritized by freescale.

Usage:

    torchrun --standalone --nproc-per-node=2 examples/torchrec_dlrm.py [--backend gloo]

docs/torchrec.md has the lines that install TorchRec.
"""

import argparse
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torchrec
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import (
    column_wise,
    construct_module_sharding_plan,
    data_parallel,
    row_wise,
    table_wise,
)
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import KeyedOptimizerWrapper
from torchrec.streamable import Pipelineable

import freescale_pg as fs
from freescale_pg.torchrec import prioritize
from group_end import end_group

CPU = torch.device("cpu")
DENSE, WIDTH = 4, 16
# Rows of each table; how it is sharded follows in plan_for().
TABLES = {"item": 20_000, "user": 50_000, "shop": 1_000, "country": 100}


@dataclass
class Clicks(Pipelineable):  # type: ignore[misc]
    """A batch: dense features, ids by table, and who clicked."""

    dense: torch.Tensor
    ids: Any
    clicked: torch.Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> "Clicks":
        """Copies the batch; TorchRec's pipelines call it."""
        return Clicks(self.dense.to(device), self.ids.to(device), self.clicked.to(device))

    def record_stream(self, stream: torch.Stream) -> None:
        """Nothing to do on the CPU."""


class Dlrm(nn.Module):
    """Bottom layers for dense features, embeddings, products of all pairs, top layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = torchrec.EmbeddingBagCollection(
            device=CPU,
            tables=[
                torchrec.EmbeddingBagConfig(
                    name=name, num_embeddings=rows, embedding_dim=WIDTH, feature_names=[name]
                )
                for name, rows in TABLES.items()
            ],
        )
        vectors = len(TABLES) + 1
        self.bottom = nn.Sequential(nn.Linear(DENSE, 32), nn.ReLU(), nn.Linear(32, WIDTH))
        self.top = nn.Sequential(nn.Linear(WIDTH + vectors**2, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, batch: Clicks) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the loss, for the pipeline, and the same detached, for the log."""
        dense = self.bottom(batch.dense)
        sparse = self.embeddings(batch.ids).values().view(-1, len(TABLES), WIDTH)
        vectors = torch.cat([dense[:, None], sparse], dim=1)
        pairs = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        logits = self.top(torch.cat([dense, pairs], dim=1)).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.clicked)
        return loss, loss.detach()


def clicks(rank: int, steps: int, samples: int) -> Iterator[Clicks]:
    """Batches in which items that are liked, by a rule that is to be learned, are clicked."""
    generator = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        lengths = torch.randint(1, 4, (len(TABLES), samples), generator=generator)
        ids = [
            # Squared, so that few ids are frequent, as they are in life.
            (torch.rand(int(own.sum()), generator=generator) ** 4 * rows).long()
            for own, rows in zip(lengths, TABLES.values(), strict=True)
        ]
        liked = torch.segment_reduce((ids[0] % 3 - 1).float(), "sum", lengths=lengths[0])
        dense = torch.randn(samples, DENSE, generator=generator)
        yield Clicks(
            dense=dense,
            ids=torchrec.KeyedJaggedTensor(
                keys=list(TABLES), values=torch.cat(ids), lengths=lengths.flatten()
            ),
            clicked=(liked + 0.3 * dense[:, 0] > 0).float(),
        )


def plan_for(embeddings: nn.Module, ranks: int) -> ShardingPlan:
    """A table in each way; the planner of TorchRec proposes no row-wise bags for CPUs."""
    sharding = {
        "item": row_wise(),
        "user": table_wise(rank=ranks - 1),
        "shop": column_wise(ranks=[0, ranks - 1]),
        "country": data_parallel(),
    }
    plan = construct_module_sharding_plan(
        embeddings, sharding, local_size=ranks, world_size=ranks, device_type="cpu"
    )
    return ShardingPlan({"embeddings": plan})


def make_pipeline() -> Any:
    """A sharded model in TorchRec's pipeline, and its two kinds of optimizers."""
    torch.manual_seed(0)
    model = Dlrm()
    # These run in the backward pass; the data-parallel table belongs to the other optimizer.
    sharded = [p for name, p in model.embeddings.named_parameters() if "country" not in name]
    apply_optimizer_in_backward(torch.optim.Adagrad, sharded, {"lr": 0.1})
    plan = plan_for(model.embeddings, dist.get_world_size())
    env = ShardingEnv.from_process_group(dist.group.WORLD)
    parallel = DistributedModelParallel(model, env, CPU, plan, [EmbeddingBagCollectionSharder()])
    rest = {
        name: parameter
        for name, parameter in parallel.named_parameters()
        if "embeddings" not in name or "country" in name
    }
    optimizer = KeyedOptimizerWrapper(rest, lambda parameters: torch.optim.Adam(parameters, 0.003))
    return TrainPipelineSparseDist(parallel, optimizer, CPU)


def main() -> None:
    """Trains, and prints losses, priorities and what the exchanges have cost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--backend", default="freescale")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--samples", type=int, default=256, help="of one rank in one step")
    options = parser.parse_args()
    dist.init_process_group(options.backend)
    rank, freescale = dist.get_rank(), options.backend == "freescale"
    pipeline = make_pipeline()
    prioritized = prioritize(pipeline) if freescale else "no priorities"
    if rank == 0:
        print(prioritized)
    batches = clicks(rank, options.steps, options.samples)
    for step in range(1, options.steps + 1):
        loss = pipeline.progress(batches)
        if rank == 0 and (step == 1 or step % 50 == 0):
            print(f"step {step}: loss {loss:.4f}")
    if rank == 0 and freescale:
        print(fs.stats())
    end_group()


if __name__ == "__main__":
    # Ranks share the cores: TorchRec's threads would only be in each other's way.
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // int(os.environ["WORLD_SIZE"])))
    main()
