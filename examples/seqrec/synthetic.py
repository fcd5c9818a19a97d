"""A long-tailed stand-in data set whose next item can be learned from the last one."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqrec.interactions import Interaction


@dataclass(frozen=True)
class SyntheticSpec:
    """Size and shape of the stand-in; the defaults resemble MovieLens-100k.

    Attributes:
        users: Number of users.
        items: Size of the catalogue.
        median_length: Median number of interactions of a user; lengths are log-normal.
        sigma: Standard deviation of the logarithm of the length.
        exponent: Popularity of the item of rank k is proportional to ``k ** -exponent`` (Zipf).
        follow: Probability that the next item is one of the fixed successors of the last item and
            not a draw by popularity. This is what a sequence model can learn and popularity cannot.
        successors: Number of fixed successors per item.
        seed: Same seed, same data.
    """

    users: int = 900
    items: int = 1600
    median_length: float = 65.0
    sigma: float = 1.0
    exponent: float = 0.9
    follow: float = 0.5
    successors: int = 4
    seed: int = 0


def generate(spec: SyntheticSpec) -> list[Interaction]:
    """Generates the interactions, user by user in the order of time.

    A user meets no item twice, as in MovieLens. A length is cut to between 8 and half the
    catalogue.
    """
    random = np.random.default_rng(spec.seed)
    popularity = np.arange(1, spec.items + 1, dtype=np.float64) ** -spec.exponent
    cumulative = np.cumsum(popularity / popularity.sum())
    successors = _draw(random, cumulative, (spec.items, spec.successors))
    log_lengths = random.normal(np.log(spec.median_length), spec.sigma, spec.users)
    lengths = np.clip(np.exp(log_lengths), 8, spec.items // 2).astype(np.int64)
    return [
        Interaction(f"u{user}", f"i{item}", float(time))
        for user, length in enumerate(lengths)
        for time, item in enumerate(_walk(random, spec, cumulative, successors, int(length)))
    ]


def _draw(
    random: np.random.Generator, cumulative: NDArray[np.float64], shape: tuple[int, ...]
) -> NDArray[np.int64]:
    """Draws items by popularity; the ``minimum`` covers a cumulative sum that ends just below 1."""
    drawn = np.searchsorted(cumulative, random.random(shape), side="right")
    return np.minimum(drawn, len(cumulative) - 1).astype(np.int64)


def _walk(
    random: np.random.Generator,
    spec: SyntheticSpec,
    cumulative: NDArray[np.float64],
    successors: NDArray[np.int64],
    length: int,
) -> list[int]:
    """Walks over items never seen before, by successor or by popularity.

    A walk that meets only seen items gives up after ``8 * length`` draws and is shorter: with Zipf
    popularity the last unseen items would take very long to find.
    """
    draws = 8 * length
    by_popularity = _draw(random, cumulative, (draws,))
    follows = random.random(draws) < spec.follow
    which = random.integers(spec.successors, size=draws)
    walk = [int(by_popularity[0])]
    seen = set(walk)
    for step in range(1, draws):
        item = int(successors[walk[-1], which[step]] if follows[step] else by_popularity[step])
        if item not in seen:
            seen.add(item)
            walk.append(item)
            if len(walk) == length:
                break
    return walk
