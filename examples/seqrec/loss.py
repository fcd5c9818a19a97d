"""Softmax over a sample of the catalogue."""

import math

import torch
from torch import Tensor


def draw_negatives(num_items: int, count: int, generator: torch.Generator) -> Tensor:
    """Draws distinct items, each equally likely; all if ``count`` reaches the catalogue's size.

    Returns:
        Ascending ids; int64, shape ``[min(count, num_items)]``.
    """
    if count >= num_items:
        return torch.arange(num_items)
    return torch.randperm(num_items, generator=generator)[:count].sort().values


def sampled_softmax_loss(
    predictions: Tensor,
    target_vectors: Tensor,
    targets: Tensor,
    negative_vectors: Tensor,
    negatives: Tensor,
    num_items: int,
) -> Tensor:
    """Cross-entropy of each target against itself and the negatives, summed over targets.

    Each negative stands for ``num_items / len(negatives)`` items, which the logarithm added to its
    score says (Bengio and Senécal, 2008); with the whole catalogue for negatives it is the full
    softmax. A target among the negatives counts once.

    Args:
        predictions: float32, shape ``[n, dim]``.
        target_vectors: float32, shape ``[n, dim]``.
        targets: int64, shape ``[n]``.
        negative_vectors: float32, shape ``[k, dim]``.
        negatives: Distinct ascending ids; int64, shape ``[k]``.
        num_items: Size of the catalogue.

    Returns:
        Scalar, float32.
    """
    positive = (predictions * target_vectors).sum(1)
    scores = predictions @ negative_vectors.T + math.log(num_items / len(negatives))
    place = torch.searchsorted(negatives, targets).clamp_(max=len(negatives) - 1)
    hit = (negatives[place] == targets).nonzero().squeeze(1)
    scores[hit, place[hit]] = -torch.inf
    return (torch.logaddexp(positive, scores.logsumexp(1)) - positive).sum()
