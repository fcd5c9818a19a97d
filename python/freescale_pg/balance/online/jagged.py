"""Samples of different lengths, without padding."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class Jagged:
    """The rows of some samples, one sample after the other.

    Attributes:
        values: Rows of all samples; shape ``[sum(lengths), …]``, any dtype.
        lengths: Rows of each sample; an integer dtype, shape ``[n]``.
    """

    values: torch.Tensor
    lengths: torch.Tensor
