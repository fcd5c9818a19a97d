"""HR@10 and NDCG@10 over the whole catalogue, computed on all ranks together."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from freescale_pg import ShardedEmbedding
from seqrec.batches import Batches, PackedBatch
from seqrec.dataset import Example
from seqrec.model import PackedLayout, SequenceModel

CUTOFF = 10

# Items scored at a time: bounds the memory for rows in flight and for scores, whatever the
# catalogue.
_CATALOGUE_CHUNK = 8192


@dataclass(frozen=True)
class Metrics:
    """Means over users.

    Attributes:
        hit_rate: Part of users whose target is among the first 10.
        ndcg: Mean of ``1 / log2(2 + rank)`` of targets among the first 10, 0 for others.
    """

    hit_rate: float
    ndcg: float


class RankCounter:
    """Finds each target's rank from scores that come chunk by chunk.

    The rank is the number of items with a higher score; a tie counts half, which is what random
    order would give on average. Items that the user has seen before do not count, whatever their
    score.
    """

    def __init__(self, target_scores: Tensor, targets: Tensor, seen: Sequence[Tensor]) -> None:
        """Starts at rank 0.

        Args:
            target_scores: float, shape ``[users]``.
            targets: int64, shape ``[users]``, on the device of the scores.
            seen: For each user, ids not to rank; int64, without the target, on the CPU.
        """
        device = target_scores.device
        self._target_scores = target_scores.unsqueeze(1)
        # The target itself is not its own rival.
        rows = [torch.full((len(ids),), user) for user, ids in enumerate(seen)]
        self._excluded_user = torch.cat([torch.arange(len(targets)), *rows]).to(device)
        self._excluded_item = torch.cat([targets.cpu(), *seen]).to(device)
        self.ranks = torch.zeros(len(targets), device=device)

    def add(self, first: int, scores: Tensor) -> None:
        """Counts the items from ``first`` on.

        Args:
            first: Id of the first item.
            scores: Scores of the items; float, shape ``[users, n]``. Overwritten in part.
        """
        n = scores.shape[1]
        inside = (self._excluded_item >= first) & (self._excluded_item < first + n)
        scores[self._excluded_user[inside], self._excluded_item[inside] - first] = -torch.inf
        higher = (scores > self._target_scores).sum(1)
        equal = (scores == self._target_scores).sum(1)
        self.ranks += higher + equal / 2


def mean_metrics(ranks: Tensor) -> Metrics:
    """Averages over the users of all ranks; collective.

    Args:
        ranks: Ranks from 0 of this rank's targets; float32, shape ``[users]``.
    """
    ranks = ranks.cpu()
    hit = ranks < CUTOFF
    gain = torch.where(hit, 1 / torch.log2(ranks.double() + 2), 0.0)
    sums = torch.tensor([hit.sum(), gain.sum(), len(ranks)], dtype=torch.float64)
    dist.all_reduce(sums)
    hits, gains, users = sums.tolist()
    return Metrics(hits / users, gains / users)


def evaluate_popularity(examples: Sequence[Example], popularity: Tensor) -> Metrics:
    """Ranks by popularity (float32, shape ``[num_items]``); collective."""
    own = examples[dist.get_rank() :: dist.get_world_size()]
    targets = torch.cat([example.targets for example in own])
    counter = RankCounter(popularity[targets], targets, [example.seen for example in own])
    counter.add(0, popularity.repeat(len(own), 1))
    return mean_metrics(counter.ranks)


@torch.no_grad()
def evaluate_model(
    model: SequenceModel, table: ShardedEmbedding, examples: Sequence[Example], batch_size: int
) -> Metrics:
    """Ranks the whole catalogue for each example; collective.

    Args:
        model: The dense part, without DDP around it.
        table: The item table.
        examples: All examples, the same list on every rank; at least as many as there are ranks.
        batch_size: Users over all ranks whose hidden states are computed at a time.
    """
    model.eval()
    order = Batches(
        examples,
        batch_size,
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        seed=None,
        dim=table.dim,
        check_ranks=False,
    )
    # All take part in the look-ups, also who has nothing to evaluate in a batch.
    moved = (batch.to(model.device) for batch in order.epoch(0))
    answers = [(batch, _predict(model, table, batch)) for batch in moved]
    batches = [batch for batch, _ in answers if batch.counts]
    predictions = torch.cat([predicted for batch, predicted in answers if batch.counts])
    targets = torch.cat([batch.targets for batch in batches])
    seen = [example.seen for batch in batches for example in batch.examples]
    counter = RankCounter((predictions * table(targets)).sum(1), targets, seen)
    catalogue = torch.arange(table.num_embeddings)
    for ids in catalogue.split(_CATALOGUE_CHUNK):
        counter.add(int(ids[0]), predictions @ table(ids.to(model.device)).T)
    model.train()
    return mean_metrics(counter.ranks)


def _predict(model: SequenceModel, table: ShardedEmbedding, batch: PackedBatch) -> Tensor:
    """Predicts what follows each sequence; float32, shape ``[sequences, dim]``."""
    layout = PackedLayout(batch.lengths, model.device)
    hidden: Tensor = model(table(batch.items), layout, [0] * len(batch.lengths))
    return hidden[layout.last]
