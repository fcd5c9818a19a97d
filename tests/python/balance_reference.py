"""The planner of cpp/balance/ once more, written to be read: no heap, no arrays, no cleverness.

Plain Python integers follow the same rules. The tests ask for the same plans, bit by bit.
"""

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_ROUNDS = 8


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def permuted_indices(size: int, seed: int, epoch: int, first: int, count: int) -> list[int]:
    """Elements of the shuffled order of ``range(size)``."""
    bits = max(2, (size - 1).bit_length())
    low_bits = bits // 2
    low_mask, high_mask = (1 << low_bits) - 1, (1 << (bits - low_bits)) - 1
    base = _mix((_mix((seed + _GOLDEN) & _MASK) + epoch) & _MASK)
    keys = [_mix((base + (number + 1) * _GOLDEN) & _MASK) for number in range(_ROUNDS)]

    def permute(value: int) -> int:
        high, low = value >> low_bits, value & low_mask
        for number in range(0, _ROUNDS, 2):
            high ^= _mix((low + keys[number]) & _MASK) & high_mask
            low ^= _mix((high + keys[number + 1]) & _MASK) & low_mask
        return high << low_bits | low

    elements = []
    for position in range(first, first + count):
        value = permute(position)
        while value >= size:
            value = permute(value)
        elements.append(value)
    return elements


def floor_load(costs: Sequence[int], world_size: int, equal_counts: bool) -> int:
    """What the heaviest rank has to bear in any assignment."""
    mean = -(-sum(costs) // world_size)
    companions = len(costs) // world_size - 1 if equal_counts else 0
    return max(mean, max(costs) + sum(sorted(costs)[:companions]))


def assign_greedily(costs: Sequence[int], world_size: int, most: int) -> list[int]:
    """Deals out from the dearest, each to the lightest rank that has room."""
    loads, held = [0] * world_size, [0] * world_size
    ranks = [0] * len(costs)
    for sample in sorted(range(len(costs)), key=lambda i: (costs[i], i), reverse=True):
        open_ranks = [rank for rank in range(world_size) if held[rank] < most]
        rank = min(open_ranks, key=lambda rank: (loads[rank], held[rank], rank))
        ranks[sample] = rank
        loads[rank] += costs[sample]
        held[rank] += 1
    return ranks


@dataclass
class PeakReducer:
    """Exchanges samples between the heaviest rank and the lightest that helps."""

    costs: Sequence[int]
    ranks: list[int]
    world_size: int
    may_only_give: bool
    amounts: Sequence[int] | None = None
    most: int = 0
    held: list[list[tuple[int, int]]] = field(init=False)

    def __post_init__(self) -> None:
        self.held = [
            sorted((self.costs[i], i) for i, owner in enumerate(self.ranks) if owner == rank)
            for rank in range(self.world_size)
        ]

    def load(self, rank: int) -> int:
        return sum(cost for cost, _ in self.held[rank])

    def amount(self, rank: int) -> int:
        assert self.amounts is not None
        return sum(self.amounts[sample] for _, sample in self.held[rank])

    def reduce(self, target: int) -> None:
        for _ in self.ranks:
            loads = [self.load(rank) for rank in range(self.world_size)]
            heavy = loads.index(max(loads))
            if loads[heavy] <= target or not self._relieve(heavy, loads):
                return

    def _relieve(self, heavy: int, loads: list[int]) -> bool:
        for light in sorted(range(self.world_size), key=lambda rank: loads[rank]):
            if (best := self.best_exchange(heavy, light, loads[heavy] - loads[light])) is not None:
                given, taken = best
                self._move(given, heavy, light)
                if taken is not None:
                    self._move(taken, light, heavy)
                return True
        return False

    def best_exchange(
        self, heavy: int, light: int, gap: int
    ) -> tuple[tuple[int, int], tuple[int, int] | None] | None:
        best, best_apart = None, gap
        gives = self.may_only_give and len(self.held[heavy]) > 1
        for given in self.held[heavy]:
            # The last that costs at most the ideal return, and the first that costs more.
            twice_ideal = 2 * given[0] - gap
            above = bisect_right(self.held[light], twice_ideal, key=lambda sample: 2 * sample[0])
            returns: list[tuple[int, int] | None] = [None] if gives else []
            returns += self.held[light][max(above - 1, 0) : above]
            returns += self.held[light][above : above + 1]
            for taken in returns:
                shift = given[0] - (taken[0] if taken else 0)
                apart = abs(gap - 2 * shift)
                if apart < best_apart and self._fits(heavy, light, given, taken):
                    best, best_apart = (given, taken), apart
        return best

    def _fits(
        self, heavy: int, light: int, given: tuple[int, int], taken: tuple[int, int] | None
    ) -> bool:
        if self.amounts is None:
            return True
        shift = self.amounts[given[1]] - (self.amounts[taken[1]] if taken else 0)
        return max(self.amount(heavy) - shift, self.amount(light) + shift) <= self.most

    def _move(self, sample: tuple[int, int], source: int, target: int) -> None:
        self.held[source].remove(sample)
        insort(self.held[target], sample)
        self.ranks[sample[1]] = target


def plan_balance(
    costs: Sequence[int],
    world_size: int,
    equal_counts: bool,
    tokens: Sequence[int] | None = None,
    most_tokens: int = 0,
) -> tuple[list[int], int] | None:
    """The rank of each sample and the floor; None if the tokens do not fit."""
    most = len(costs) // world_size if equal_counts else len(costs)
    ranks = assign_greedily(costs, world_size, most)
    if tokens is not None:
        fitter = PeakReducer(tokens, ranks, world_size, not equal_counts)
        fitter.reduce(most_tokens)
        if max(fitter.load(rank) for rank in range(world_size)) > most_tokens:
            return None
    reducer = PeakReducer(costs, ranks, world_size, not equal_counts, tokens, most_tokens)
    floor = floor_load(costs, world_size, equal_counts)
    reducer.reduce(floor + floor // 4096)
    return ranks, floor


def rebalance(
    costs: Sequence[int], world_size: int, ranks: Sequence[int], target: int, equal_counts: bool
) -> list[int]:
    """The new rank of each sample."""
    reducer = PeakReducer(costs, list(ranks), world_size, not equal_counts)
    reducer.reduce(target)
    return reducer.ranks
