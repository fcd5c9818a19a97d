"""Lengths of sequences, real and generated, to balance."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

_ROOT = Path(__file__).resolve().parents[2]

Integers = npt.NDArray[np.int64]


def _lognormal(
    samples: int, median: float, sigma: float, least: int, most: int, seed: int
) -> Integers:
    normal = np.random.default_rng(seed).standard_normal(samples)
    lengths = np.rint(median * np.exp(sigma * normal))
    return np.clip(lengths, least, most).astype(np.int64)


def lognormal() -> Integers:
    """Median 200, sigma 1, at most 8192 tokens: a long tail, as histories of users have."""
    return _lognormal(1 << 20, 200, 1.0, 1, 8192, seed=1)


def ml_1m_like() -> Integers:
    """Like MovieLens-1M: 6040 users with 1,000,209 ratings, 20 or more each.

    (Harper and Konstan 2015.) Ratings per user have mean 165.6 and standard deviation 192.7, the
    longest 2314. What is above the least of 20 is drawn from the gamma distribution with these two
    moments: shape (145.6 / 192.7)² = 0.571, scale 192.7² / 145.6 = 255. Its quartiles are 38, 94
    and 221, the data set's 44, 96 and 208.
    """
    above = np.random.default_rng(2).gamma(0.571, 255, 6040)
    lengths: Integers = np.minimum(20 + np.rint(above), 2314).astype(np.int64)
    return lengths


def lastfm_like() -> Integers:
    """Like LastFM as S3-Rec uses it: 1090 users with 52,551 actions, 5 or more each.

    (Zhou et al. 2020, arXiv 2008.07873.) Only the mean of 48.2 is published: sigma = 1.2 is
    assumed, and with it the median of 48.2 · exp(-sigma²/2) = 23.5; at most 512 tokens are trained
    on.
    """
    return _lognormal(1090, 23.5, 1.2, 5, 512, seed=3)


def ml_100k() -> Integers:
    """The lengths of MovieLens-100k's 943 users, as ``make train`` fetches them.

    Raises:
        RuntimeError: They could not be fetched.
    """
    # The example is no package; only this function needs it.
    sys.path.append(str(_ROOT / "examples"))
    from seqrec import interactions, movielens

    path = movielens.fetch(_ROOT / ".cache")
    rows = interactions.read_interactions(path)
    return np.array(list(Counter(row.user for row in rows).values()), dtype=np.int64)


LENGTH_SETS: dict[str, Callable[[], Integers]] = {
    "lognormal": lognormal,
    "ML-100k": ml_100k,
    "ML-1M-like": ml_1m_like,
    "LastFM-like": lastfm_like,
}
