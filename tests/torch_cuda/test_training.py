"""Training on CUDA tensors against the same on the CPU, with what no GPU is needed for."""

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import embedding_reference as reference
import freescale_pg as fs
from freescale_pg._agreement import RanksDisagreeError
from freescale_pg.balance import Jagged
from freescale_pg.embedding import (
    Adam,
    EmbeddingTable,
    OverlapPipeline,
    RowOptimizer,
    RowwiseAdagrad,
    ShardedEmbedding,
    ShardedEmbeddingCollection,
)
from freescale_pg.embedding.background import Background
from harness.data import numbers
from harness.rank import open_store
from host_operations import computing_on_host
from ranks import Ranks
from seqrec.dataset import from_interactions
from seqrec.settings import parse
from seqrec.synthetic import SyntheticSpec, generate
from seqrec.train import Trainer

# Every operation is several copies through the stand-in driver, which may share its cores.
LIMIT = 600.0
pytestmark = pytest.mark.timeout(LIMIT)

Found = dict[str, Any]


def own_device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def join_exchanging_group(rank: int, world_size: int) -> None:
    dist.init_process_group(
        "freescale",
        store=open_store("default"),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=LIMIT),
        pg_options=fs.Options(reductions="exchange"),
    )


def train_example(device: torch.device, options: list[str]) -> Found:
    small = ["--epochs=2", "--max-steps=4", "--batch-size=10", "--max-length=8", "--dim=8"]
    settings = parse([*small, "--layers=1", "--negatives=20", "--lr=0.01", *options])
    spec = SyntheticSpec(users=30, items=50, median_length=8.0)
    data = from_interactions("synthetic", generate(spec))
    trainer = Trainer(settings, data, device)
    losses = [trainer.epoch(number, lambda: None).loss for number in (1, 2)]
    trainer.restore(trainer.state())
    return {
        "losses": losses,
        "ndcg": trainer.evaluate(data.test(settings.max_length)).ndcg,
        "table": trainer.table.weight.cpu(),
        "dense": [weight.detach().cpu() for weight in trainer.model.parameters()],
    }


def train_example_on_both(rank: int, world_size: int, options: list[str]) -> None:
    join_exchanging_group(rank, world_size)
    expected = train_example(torch.device("cpu"), options)
    with computing_on_host():
        found = train_example(own_device(), options)
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert found["ndcg"] == pytest.approx(expected["ndcg"], abs=0.02)
    # Adam divides by the root of tiny second moments, which turns rounding into more.
    for what in ("table", "dense"):
        torch.testing.assert_close(found[what], expected[what], rtol=0, atol=1e-3)
    dist.destroy_process_group()


@pytest.mark.parametrize("devices", [(0, 1), (0, 0)], ids=["two devices", "one device"])
@pytest.mark.parametrize("option", ["--overlap", "--no-overlap"])
def test_the_example_trains(run_ranks: Ranks, option: str, devices: tuple[int, ...]) -> None:
    """On one device, too, which NCCL would refuse."""
    # torch's compiler, which optimizers import, leaves things open.
    more = {"init": False, "checks_footprint": False, "limit": LIMIT}
    run_ranks(len(devices), train_example_on_both, [option], devices=devices, **more)


TABLES = (
    EmbeddingTable("rows", 40, 6),
    EmbeddingTable("columns", 30, 5, "column", "sum"),
    EmbeddingTable("whole", 20, 4, "table", "mean", rank=1),
)
STEPS = 4
Inputs = dict[str, Tensor | Jagged]


def inputs(rank: int, step: int, device: torch.device) -> Inputs:
    """Ids of a batch; none of one table in some."""
    random = torch.Generator().manual_seed(10 * step + rank)
    lengths = torch.tensor([3, 0, 4])

    def ids(rows: int, count: int) -> Tensor:
        return torch.randint(rows, (count,), generator=random).to(device)

    return {
        "rows": ids(40, 9 if (rank + step) % 3 else 0),
        "columns": Jagged(ids(30, 7), lengths.to(device)),
        "whole": Jagged(ids(20, 7), lengths.to(device)),
    }


def loss_of(vectors: dict[str, Tensor]) -> Tensor:
    parts = [
        (each * numbers(tuple(each.shape), key=("loss",)).to(each.device)).sum()
        for each in vectors.values()
    ]
    return torch.stack(parts).sum()


def train_tables(rank: int, device: torch.device, optimizer: RowOptimizer, dedup: bool) -> Found:
    """Plainly, then overlapped; in the last batch rank 0 looks nothing up."""
    tables = ShardedEmbeddingCollection(TABLES, optimizer=optimizer, dedup=dedup, device=device)
    weights = {"columns": numbers(7, key=("weights",)).to(device).requires_grad_()}
    losses = []
    for step in range(2):
        loss = loss_of(tables(inputs(rank, step, device), weights))
        loss.backward()
        losses.append(float(loss.detach()))
    batches = [inputs(rank, step, device) for step in range(STEPS)]
    batches.append({} if rank == 0 else inputs(rank, STEPS, device))

    def model(batch: Inputs) -> Tensor:
        if not batch:
            return torch.zeros((), device=device, requires_grad=True)
        return loss_of(tables(batch))

    def ids_of(batch: Inputs) -> list[Any]:
        return [batch] if batch else []

    with OverlapPipeline(model, None, batches, embedding=tables, ids_of=ids_of) as pipeline:
        losses += [float(loss) for loss in pipeline]
    kept = {name: each.cpu() for name, each in reference.snapshot(tables).items()}
    assert weights["columns"].grad is not None
    return {"losses": losses, "weights": weights["columns"].grad.cpu(), **kept}


def train_tables_on_both(rank: int, world_size: int, name: str, dedup: bool) -> None:
    join_exchanging_group(rank, world_size)
    optimizer = Adam(0.05) if name == "Adam" else RowwiseAdagrad(0.3)
    expected = train_tables(rank, torch.device("cpu"), optimizer, dedup)
    with computing_on_host():
        found = train_tables(rank, own_device(), optimizer, dedup)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    dist.destroy_process_group()


@pytest.mark.parametrize(("name", "dedup"), [("Adam", True), ("RowwiseAdagrad", False)])
def test_tables_of_every_sharding_train(run_ranks: Ranks, name: str, dedup: bool) -> None:
    more = {"init": False, "checks_footprint": False, "limit": LIMIT}
    run_ranks(2, train_tables_on_both, name, dedup, **more)


def look_up_ids_of_the_cpu(rank: int, world_size: int) -> None:
    """One rank's mistake is an error on all, before any of them waits for what does not come."""
    with computing_on_host():
        table = ShardedEmbedding(10, 4, optimizer=Adam(0.1), device=own_device())
        ids = torch.arange(5) if rank == 1 else torch.arange(5).cuda()
        with pytest.raises(RanksDisagreeError, match=r"rank 1: .* ids are on cpu, .* on cuda:1"):
            table(ids)


def test_ids_must_be_where_the_rows_are(run_ranks: Ranks) -> None:
    run_ranks(2, look_up_ids_of_the_cpu)


def look_at_the_stream(rank: int, world_size: int) -> None:
    """What goes on beside the model must not overtake it on a stream of its own."""
    found = []

    def look() -> None:
        found.append((torch.cuda.current_stream(), torch.cuda.current_device()))

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        Background(look).join()
    assert found == [(side, rank)]


def test_the_background_has_the_callers_stream(run_ranks: Ranks) -> None:
    run_ranks(2, look_at_the_stream)
