"""Inputs of a look-up, checked, and what becomes of the vectors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from freescale_pg.balance.online.jagged import Jagged
from freescale_pg.embedding.table import EmbeddingTable

# Ids of any shape, or bags of ids.
Ids: TypeAlias = Tensor | Jagged

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)


@dataclass(frozen=True)
class Lookup:
    """One feature of a batch.

    Attributes:
        name: Of the feature.
        table: In which to look up.
        ids: Integers; of any shape, or ``[n]`` if there are lengths.
        lengths: Ids in each bag; int64, shape ``[bags]``. None: no bags.
        weights: What each vector is multiplied by before the vectors of a bag are added up; shape
            ``[n]``.
    """

    name: str
    table: EmbeddingTable
    ids: Tensor
    lengths: Tensor | None
    weights: Tensor | None

    def check(self, device: torch.device) -> None:
        """Raises ValueError or TypeError if it can't be looked up in shards on a device."""
        table, ids = self.table, self.ids
        for what, given in (("ids", ids), ("lengths", self.lengths), ("weights", self.weights)):
            if given is not None and given.device != device:
                raise ValueError(
                    f"feature {self.name}: {what} are on {given.device}, and the table's rows on"
                    f" {device}"
                )
        if ids.dtype not in _INTEGERS:
            raise TypeError(f"feature {self.name}: ids must be integers, got {ids.dtype}")
        if ids.numel():
            low, high = (int(bound) for bound in torch.aminmax(ids))
            if low < 0 or high >= table.num_embeddings:
                raise ValueError(
                    f"feature {self.name}: id {low if low < 0 else high} is not in table"
                    f" {table.name}, which has {table.num_embeddings} rows"
                )
        if table.pooling is not None and self.lengths is None:
            raise ValueError(f"feature {self.name}: table {table.name} is pooled and needs lengths")
        if self.lengths is not None:
            self._check_lengths(self.lengths)
        if self.weights is not None:
            self._check_weights(self.weights)

    def vectors(self, places: Tensor, rows: Tensor) -> Tensor:
        """Returns what the user gets.

        Args:
            places: Which of the rows each id stands for; int64, shape ``[n]``.
            rows: Shape ``[rows, dim]``.

        Returns:
            Shape ``[*ids.shape, dim]``; of a pooled table ``[bags, dim]``.
        """
        if self.table.pooling is None:
            return F.embedding(places.view(self.ids.shape), rows)
        assert self.lengths is not None
        offsets = self.lengths.cumsum(0) - self.lengths
        pooled = _pool(places, rows, offsets, self.weights)
        if self.table.pooling == "mean":
            pooled = pooled / self.lengths.clamp(min=1).to(pooled.dtype)[:, None]
        return pooled

    def _check_lengths(self, lengths: Tensor) -> None:
        if lengths.dim() != 1 or lengths.dtype not in _INTEGERS or self.ids.dim() != 1:
            raise ValueError(
                f"feature {self.name}: lengths must be integers of one dimension beside ids of one"
                f" dimension, got {lengths.dtype} of shape {list(lengths.shape)} beside ids of"
                f" shape {list(self.ids.shape)}"
            )
        if len(lengths) and int(lengths.min()) < 0:
            raise ValueError(f"feature {self.name}: a length is {int(lengths.min())}")
        if int(lengths.sum()) != len(self.ids):
            raise ValueError(
                f"feature {self.name}: the lengths add up to {int(lengths.sum())}, and there are"
                f" {len(self.ids)} ids"
            )

    def _check_weights(self, weights: Tensor) -> None:
        if self.table.pooling is None:
            raise ValueError(
                f"feature {self.name}: weights are for pooled tables, and {self.table.name} is none"
            )
        if weights.shape != self.ids.shape:
            raise ValueError(
                f"feature {self.name}: weights have shape {list(weights.shape)}, and ids"
                f" {list(self.ids.shape)}"
            )


def _pool(places: Tensor, rows: Tensor, offsets: Tensor, weights: Tensor | None) -> Tensor:
    if not len(rows):
        # embedding_bag refuses a table without rows, even where no bag has an id. The sums are
        # zero, and let backward reach what rows and weights came from, as other ranks wait for it.
        nothing = rows.sum() if weights is None else rows.sum() + weights.sum()
        return rows.new_zeros((len(offsets), rows.shape[1])) + nothing.to(rows.dtype)
    if weights is not None:
        weights = weights.to(rows.dtype)
    return F.embedding_bag(places, rows, offsets, mode="sum", per_sample_weights=weights)


def parse(
    tables: Mapping[str, EmbeddingTable],
    inputs: Mapping[str, Ids],
    weights: Mapping[str, Tensor] | None,
) -> list[Lookup]:
    """Brings a user's inputs into the order of the features.

    Args:
        tables: By feature.
        inputs: By feature.
        weights: By feature, of some or all.

    Raises:
        ValueError: A feature is missing, or there is no such feature.
        TypeError: Ids are no tensors.
    """
    unknown = [*(inputs.keys() - tables.keys()), *((weights or {}).keys() - tables.keys())]
    if unknown or len(inputs) != len(tables):
        raise ValueError(
            f"there must be ids for the features {sorted(tables)}, got {sorted(inputs)}"
            + (f"; unknown: {sorted(unknown)}" if unknown else "")
        )
    return [
        _lookup(name, table, inputs[name], (weights or {}).get(name))
        for name, table in tables.items()
    ]


def _lookup(name: str, table: EmbeddingTable, given: Ids, weights: Tensor | None) -> Lookup:
    if isinstance(given, Jagged):
        return Lookup(name, table, given.values, given.lengths, weights)
    if not isinstance(given, Tensor):
        raise TypeError(
            f"feature {name}: ids must be a tensor or Jagged, got {type(given).__name__}"
        )
    return Lookup(name, table, given, None, weights)
