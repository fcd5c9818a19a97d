"""Step 1 of docs/tutorial.md: the same over freescale."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import freescale_pg as fs
from histories import Histories, collate
from job import BATCH_SIZE, conclude, first_rows, parse_options, traced
from plain_table import PlainTable
from ranker import Ranker


def main() -> None:
    """Trains on each history once."""
    options = parse_options(__doc__)
    dist.init_process_group("freescale")
    torch.manual_seed(0)
    data = Histories(options.samples)
    sampler: DistributedSampler[int] = DistributedSampler(data, shuffle=False, drop_last=True)
    loader = DataLoader(data, BATCH_SIZE, sampler=sampler, collate_fn=collate, drop_last=True)
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
