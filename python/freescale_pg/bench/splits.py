"""How an all-to-all's input is cut."""

from __future__ import annotations


def equal_splits(count: int, world_size: int) -> list[int]:
    """``world_size`` equal parts of ``count`` elements.

    Raises:
        ValueError: ``count`` cannot be cut equally.
    """
    if count % world_size:
        raise ValueError(f"{count} elements cannot be cut into {world_size} equal parts")
    return [count // world_size] * world_size


def ragged_splits(count: int, world_size: int) -> list[int]:
    """The fixed ragged cut: rank 0 is the hottest destination, the last rank the coldest.

    Destination ``d`` gets ``2 W - 1 - d`` shares, so the hottest gets almost twice what the
    coldest gets (3 : 2 at two ranks), as with a row-wise sharded table whose first shard is
    popular. Every source cuts alike, so each sends as many elements as in the equal case and all
    ranks together receive as many; the parts start at odd offsets.

    Args:
        count: elements of the rank's input.
        world_size: number of destinations.

    Returns:
        Elements for each destination; they sum to ``count``.
    """
    shares = [2 * world_size - 1 - destination for destination in range(world_size)]
    ends = [count * sum(shares[: d + 1]) // sum(shares) for d in range(world_size)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]
