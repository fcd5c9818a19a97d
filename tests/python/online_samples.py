"""Samples of streams whose lengths nobody knows beforehand, for tests of the online balancer."""

import numpy as np
import torch

# Of a sample's number: rank, step and place are each below it.
RADIX = 1000


def numbers_of(rank: int, step: int, samples: int) -> torch.Tensor:
    """Every sample of a run has a number of its own, and all its fields follow from it."""
    return (rank * RADIX + step) * RADIX + torch.arange(samples)


def lengths_of(numbers: torch.Tensor) -> torch.Tensor:
    """Lognormal, median 20 and sigma 1, at most 800."""
    normal = [np.random.default_rng(int(number)).standard_normal() for number in numbers]
    lengths = np.minimum(np.rint(20 * np.exp(normal)), 800).astype(np.int64)
    return torch.from_numpy(lengths)


def history_of(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = lengths_of(numbers)
    owners = numbers.repeat_interleave(lengths)
    starts = (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
    return owners * RADIX + torch.arange(len(owners)) - starts, lengths
