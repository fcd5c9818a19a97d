"""Cuts an epoch into global batches, deals each to the ranks, and packs a rank's share.

The global batches depend on the seed alone, so that any number of ranks trains the same model.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

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
        global_targets: Number of targets of the whole global batch, over all ranks.
    """

    items: Tensor
    targets: Tensor
    lengths: list[int]
    examples: list[Example]
    global_targets: int


def batch_count(examples: int, batch_size: int) -> int:
    """Returns how many batches ``global_batches`` makes."""
    return max(1, examples // batch_size)


def global_batches(
    examples: Sequence[Example], batch_size: int, generator: torch.Generator | None = None
) -> list[list[Example]]:
    """Cuts the examples into batches whose sizes differ by one at most.

    None is smaller than asked for: no small rest is left at the end, so that every rank gets a
    sequence of every batch.

    Args:
        examples: What to cut; at least one.
        batch_size: Smallest number of examples in a batch; with fewer examples in all there is one
            batch.
        generator: Shuffles; None keeps the order.
    """
    shuffled = list(examples)
    if generator is not None:
        order = torch.randperm(len(examples), generator=generator)
        shuffled = [examples[i] for i in order.tolist()]
    count = batch_count(len(shuffled), batch_size)
    bounds = [len(shuffled) * i // count for i in range(count + 1)]
    return [shuffled[start:end] for start, end in pairwise(bounds)]


def deal(batch: Sequence[Example], world_size: int) -> list[list[Example]]:
    """Gives every rank about the same number of tokens: longest first, each to the lightest rank.

    Returns:
        One list per rank, longest first; none is empty if there are at least ``world_size``
        examples.
    """
    shares: list[list[Example]] = [[] for _ in range(world_size)]
    # An example has at least one input, so a rank that has an example is never the lightest while
    # another has none.
    lightest = [(0, rank) for rank in range(world_size)]
    for example in sorted(batch, key=lambda example: -len(example.items)):
        load, rank = heapq.heappop(lightest)
        shares[rank].append(example)
        heapq.heappush(lightest, (load + len(example.items), rank))
    return shares


def pack(share: Sequence[Example], global_targets: int) -> PackedBatch:
    """Packs one rank's share, which must be ordered longest first."""
    return PackedBatch(
        items=torch.cat([example.items for example in share]),
        targets=torch.cat([example.targets for example in share]),
        lengths=[len(example.items) for example in share],
        examples=list(share),
        global_targets=global_targets,
    )


def rank_batches(
    batches: Sequence[Sequence[Example]], rank: int, world_size: int
) -> Iterator[PackedBatch]:
    """Yields this rank's share of each global batch."""
    for batch in batches:
        global_targets = sum(len(example.targets) for example in batch)
        yield pack(deal(batch, world_size)[rank], global_targets)
