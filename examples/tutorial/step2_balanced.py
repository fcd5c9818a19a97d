"""Step 2 of docs/tutorial.md: every rank gets the same load."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import freescale_pg as fs
from freescale_pg.balance import Quadratic
from histories import Histories, collate
from job import BATCH_SIZE, conclude, first_rows, parse_options, traced
from plain_table import PlainTable
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
    items = PlainTable(first_rows())
    model = DistributedDataParallel(Ranker())
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    row_optimizer = torch.optim.SparseAdam(items.parameters(), 1e-2)

    losses = []
    meter = fs.BubbleMeter()
    with traced(options.traces) as next_step:
        for batch in meter.loader(loader):
            with meter.step():
                loss = model(items(batch.ids), batch).mean()
                loss.backward()
                optimizer.step()
                row_optimizer.step()
                optimizer.zero_grad()
                row_optimizer.zero_grad()
            losses.append(loss.detach())
            next_step()
    conclude(options, losses, meter)


if __name__ == "__main__":
    main()
