"""Cuts an epoch into global batches, deals each to the ranks, and packs a rank's share.

The global batches depend on the seed alone, so that any number of ranks trains the same model.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import freescale_pg as fs
from freescale_pg.balance import EpochBalance, GlobalBatch, Quadratic
from seqrec.dataset import Example


@dataclass(frozen=True)
class PackedBatch:
    """One rank's share of a global batch, longest sequence first, packed end to end.

    Attributes:
        items: Input ids of all sequences; int64, shape ``[tokens]``.
        targets: The examples' targets, end to end; int64, shape ``[tokens]`` to train,
            ``[sequences]`` to evaluate.
        lengths: Number of inputs of each sequence, never rising.
        examples: The sequences in packed order.
        counts: False for a rank that has no part in the batch: its sequence only keeps it in step
            with the others, and must have no influence.
        global_examples: Number of sequences of the whole global batch, over all ranks.
        global_targets: Number of targets of the whole global batch.
    """

    items: Tensor
    targets: Tensor
    lengths: list[int]
    examples: list[Example]
    counts: bool
    global_examples: int
    global_targets: int

    def to(self, device: torch.device) -> "PackedBatch":
        """Returns the batch with the ids that the model sees on a device."""
        return replace(self, items=self.items.to(device), targets=self.targets.to(device))


def share_of(plan: GlobalBatch, rank: int, *, balance: bool) -> list[int]:
    """Returns which examples of a global batch are a rank's, in ascending order of turn.

    Args:
        plan: Of the global batch.
        rank: Whose share.
        balance: As planned; else dealt out in turn, as DistributedSampler does.
    """
    if balance:
        return plan.samples_of(rank)[: plan.real_samples_of(rank)]
    in_turn: list[int] = plan.indices[rank : plan.real : plan.world_size].tolist()
    return in_turn


class Batches:
    """One rank's share of all global batches, the same number on every rank.

    Args:
        examples: At least one for each rank; the same on every rank.
        batch_size: Examples in a global batch; rounded up to a multiple of the number of ranks.
        rank: This rank.
        world_size: Number of ranks.
        seed: Of the order; None: the order of the examples.
        dim: Width of the model, which says how much longer sequences cost more.
        balance: Whether ranks get shares that cost alike; else examples are dealt out in turn.
        check_ranks: Compare what the ranks were given before the first batch; collective.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        batch_size: int,
        *,
        rank: int,
        world_size: int,
        seed: int | None,
        dim: int,
        balance: bool = True,
        check_ranks: bool = True,
    ) -> None:
        self._examples = examples
        self._rank = rank
        self._balance = balance
        self._sampler = fs.BalancedBatchSampler(
            [len(example.items) for example in examples],
            -(-batch_size // world_size),
            num_replicas=world_size,
            rank=rank,
            shuffle=seed is not None,
            seed=seed or 0,
            # By multiplications, 12·dim² for a token and 2·dim for a pair of tokens in each block.
            cost_model=Quadratic(1, 1 / (6 * dim)),
            check_ranks=check_ranks,
        )

    def __len__(self) -> int:
        """Returns the number of global batches in an epoch."""
        return len(self._sampler)

    def epoch(self, number: int) -> Iterator[PackedBatch]:
        """Yields this rank's share of each global batch."""
        self._sampler.set_epoch(number)
        for step, _ in enumerate(self._sampler):
            plan = self._sampler.plan(step)
            yield self._pack(plan, share_of(plan, self._rank, balance=self._balance))

    @property
    def sampler(self) -> fs.BalancedBatchSampler:
        """What deals the examples out."""
        return self._sampler

    def imbalance(self) -> EpochBalance:
        """Returns how unequal the ranks' shares of the last epoch are, balanced and not."""
        return self._sampler.stats()

    def _pack(self, plan: GlobalBatch, share: Sequence[int]) -> PackedBatch:
        own = [self._examples[i] for i in share or plan.indices[:1].tolist()]
        own.sort(key=lambda example: -len(example.items))
        everyones = [self._examples[i] for i in plan.indices[: plan.real].tolist()]
        return PackedBatch(
            items=torch.cat([example.items for example in own]),
            targets=torch.cat([example.targets for example in own]),
            lengths=[len(example.items) for example in own],
            examples=own,
            counts=bool(share),
            global_examples=plan.real,
            global_targets=sum(len(example.targets) for example in everyones),
        )
