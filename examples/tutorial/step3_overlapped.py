"""Step 3 of docs/tutorial.md: rows travel ahead, and urgent ones first."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import freescale_pg as fs
from freescale_pg.balance import Quadratic
from freescale_pg.embedding import Adam
from histories import ITEMS, Batch, Histories, collate
from job import BATCH_SIZE, conclude, first_rows, parse_options, traced
from ranker import DIM, Ranker


def main() -> None:
    """Trains on each history once."""
    options = parse_options(__doc__)
    dist.init_process_group("freescale")
    torch.manual_seed(0)
    data = Histories(options.samples)
    cost = Quadratic(1, 1 / (6 * DIM))
    sampler = fs.BalancedBatchSampler(
        data.lengths, BATCH_SIZE, shuffle=False, drop_last=True, cost_model=cost
    )
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=collate)
    items = fs.ShardedEmbedding(ITEMS, DIM, optimizer=Adam(1e-2), spread=False)
    items.load_state_dict({"tables.table.weight": first_rows()}, strict=False)
    model = DistributedDataParallel(Ranker())
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def loss_of(batch: Batch) -> Tensor:
        losses: Tensor = model(items(batch.ids), batch)
        return losses.mean()

    losses = []
    meter = fs.BubbleMeter()
    pipeline = fs.OverlapPipeline(
        loss_of, optimizer, meter.loader(loader), embedding=items, ids_of=lambda batch: batch.ids
    )
    with traced(options.traces) as next_step, pipeline:
        for _ in range(len(sampler)):
            with meter.step():
                losses.append(pipeline.step())
            next_step()
    conclude(options, losses, meter)


if __name__ == "__main__":
    main()
