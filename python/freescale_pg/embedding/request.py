"""What the ranks want of each other's tables for one batch, from both ends.

A :class:`Request` is what this rank asks for, a :class:`Demand` what the others ask of its shards.
Both cut everything into *pieces*, one for each peer and table, peer by peer and within a peer table
by table: that is the order on the wire. An *entry* is one row of a piece.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from freescale_pg.embedding.placement import Placement
from freescale_pg.embedding.shard import TableShard


@dataclass(frozen=True)
class Selection:
    """Some entries of every piece, as indices into it; ``[peer][table]``, int64, ascending."""

    entries: list[list[Tensor]]

    @staticmethod
    def of(masks: list[list[Tensor]]) -> tuple["Selection", "Selection"]:
        """Returns the entries whose mask is set, and the others."""
        return (
            Selection([[mask.nonzero()[:, 0] for mask in peer] for peer in masks]),
            Selection([[(mask == 0).nonzero()[:, 0] for mask in peer] for peer in masks]),
        )


class Request:
    """What one batch of this rank needs.

    Attributes:
        positions: By table: the positions of the rows, ascending; each once, or with duplicates as
            often as it occurs. int64.
        counts: Entries of each piece; ``[peer][table]``.
    """

    def __init__(
        self, placements: Sequence[Placement], ids: Sequence[Sequence[Tensor]], *, dedup: bool
    ) -> None:
        """Sorts what is asked for by holder.

        Args:
            placements: Of the tables.
            ids: By table, any number of tensors with valid ids; integers, shape ``[n]``.
            dedup: Ask for each row once.
        """
        self._placements = placements
        self._given: list[list[tuple[Tensor, Tensor]]] = []
        self.positions: list[Tensor] = []
        for placement, tensors in zip(placements, ids, strict=True):
            joined = torch.cat(list(tensors)) if tensors else torch.empty(0, dtype=torch.int64)
            positions, inverse = _sorted(placement.positions(joined), dedup)
            sizes = [len(tensor) for tensor in tensors]
            self.positions.append(positions)
            self._given.append(list(zip(tensors, inverse.split(sizes), strict=True)))
        self._slices = self._cut()
        self.counts = [[part.stop - part.start for part in peer] for peer in self._slices]

    def find(self, table: int, ids: Tensor) -> Tensor | None:
        """Returns where the rows of ids stand among ``positions``; None: not all do.

        Args:
            table: Index of the table.
            ids: Integers, shape ``[n]``.
        """
        for known, places in self._given[table]:
            if known is ids or (
                (known.shape, known.dtype) == (ids.shape, ids.dtype) and torch.equal(known, ids)
            ):
                return places
        positions, wanted = self.positions[table], self._placements[table].positions(ids)
        if not len(positions):
            return None if len(wanted) else wanted
        places = torch.searchsorted(positions, wanted).clamp_(max=len(positions) - 1)
        return places if torch.equal(positions[places], wanted) else None

    def wire_rows(self, dtype: torch.dtype) -> Tensor:
        """Returns the rows within their holders' shards, in wire order."""
        pieces = [
            self.positions[table][part] - self._placements[table].shards[peer].rows.start
            for peer, table, part in self._pieces()
        ]
        return torch.cat(pieces).to(dtype)

    def empty_vectors(self, dtype: torch.dtype) -> list[Tensor]:
        """Returns room for the vectors; by table, shape ``[entries, dim]``."""
        return [
            positions.new_empty((len(positions), placement.table.dim), dtype=dtype)
            for positions, placement in zip(self.positions, self._placements, strict=True)
        ]

    def masks(self, wire: Tensor) -> list[list[Tensor]]:
        """Cuts one value for each entry, in wire order, into pieces."""
        parts = iter(wire.split([count for peer in self.counts for count in peer]))
        return [[next(parts) for _ in peer] for peer in self.counts]

    def sizes(self, selection: Selection | None) -> list[int]:
        """Returns how many values come from, or go to, each peer."""
        return [
            sum(
                count * len(placement.shards[peer].columns)
                for count, placement in zip(counts, self._placements, strict=True)
            )
            for peer, counts in enumerate(_counts(self.counts, selection))
        ]

    def store(self, wire: Tensor, selection: Selection | None, vectors: list[Tensor]) -> None:
        """Puts what came into ``vectors``, by table, shape ``[entries, dim]``."""
        first = 0
        for peer, table, part in self._pieces():
            columns = self._columns(peer, table)
            rows = part if selection is None else selection.entries[peer][table] + part.start
            count = _length(rows)
            if count and (width := columns.stop - columns.start):
                piece = wire[first : first + count * width].view(count, width)
                vectors[table][rows, columns] = piece
                first += count * width

    def gather(self, gradients: Sequence[Tensor], selection: Selection | None) -> Tensor:
        """Returns gradients of vectors in wire order; those of :meth:`store`."""
        pieces = []
        for peer, table, part in self._pieces():
            rows = part if selection is None else selection.entries[peer][table] + part.start
            pieces.append(gradients[table][rows, self._columns(peer, table)].reshape(-1))
        return torch.cat(pieces)

    def _cut(self) -> list[list[slice]]:
        world_size = len(self._placements[0].shards)
        slices: list[list[slice]] = [[] for _ in range(world_size)]
        for placement, positions in zip(self._placements, self.positions, strict=True):
            bounds = [(shard.rows.start, shard.rows.stop) for shard in placement.shards]
            places = torch.searchsorted(positions, torch.tensor(bounds).to(positions.device))
            for peer, (low, high) in enumerate(places.tolist()):
                holds = not placement.shards[peer].holds_nothing
                slices[peer].append(slice(low, high) if holds else slice(0, 0))
        return slices

    def _pieces(self) -> Iterator[tuple[int, int, slice]]:
        for peer, tables in enumerate(self._slices):
            for table, part in enumerate(tables):
                yield peer, table, part

    def _columns(self, peer: int, table: int) -> slice:
        columns = self._placements[table].shards[peer].columns
        return slice(columns.start, columns.stop)


class Demand:
    """What all ranks ask of this rank's shards for one batch.

    Attributes:
        rows: By table: the rows that are asked for by anybody, ascending, each once; int64.
        counts: Entries of each piece; ``[peer][table]``.
    """

    def __init__(
        self, shards: Sequence[TableShard], counts: list[list[int]], wire_rows: Tensor
    ) -> None:
        """Sorts what came.

        Args:
            shards: This rank's, by table.
            counts: Entries of each piece.
            wire_rows: Rows within the shards, in wire order.
        """
        self._shards = shards
        self.counts = counts
        pieces = iter(wire_rows.to(torch.int64).split([count for peer in counts for count in peer]))
        by_peer = [[next(pieces) for _ in peer] for peer in counts]
        self.rows: list[Tensor] = []
        # Where the row of each entry stands in ``rows``.
        self._places: list[list[Tensor]] = [[] for _ in counts]
        for table in range(len(shards)):
            parts = [peer[table] for peer in by_peer]
            rows, places = torch.unique(torch.cat(parts), return_inverse=True)
            self.rows.append(rows)
            for peer, part in enumerate(places.split([len(part) for part in parts])):
                self._places[peer].append(part)

    def shared_with(self, other: "Demand") -> list[Tensor]:
        """Returns which of ``rows`` another batch also needs; by table, bool."""
        return [
            torch.isin(own, others, assume_unique=True)
            for own, others in zip(self.rows, other.rows, strict=True)
        ]

    def masks(self, of_rows: Sequence[Tensor]) -> list[list[Tensor]]:
        """Returns for each entry what is said of its row; pieces."""
        return [[of_rows[table][part] for table, part in enumerate(peer)] for peer in self._places]

    def sizes(self, selection: Selection | None) -> list[int]:
        """Returns how many values go to, or come from, each peer."""
        return [
            sum(count * shard.width for count, shard in zip(counts, self._shards, strict=True))
            for counts in _counts(self.counts, selection)
        ]

    @torch.no_grad()
    def look_up(self, selection: Selection | None) -> Tensor:
        """Returns the vectors of the entries, in wire order."""
        pieces = []
        for peer, tables in enumerate(self._places):
            for table, places in enumerate(tables):
                chosen = places if selection is None else places[selection.entries[peer][table]]
                rows = self.rows[table][chosen]
                pieces.append(self._shards[table].weight[rows].reshape(-1))
        return torch.cat(pieces)

    def add_up(
        self, wire: Tensor, selection: Selection | None, of_rows: Sequence[Tensor] | None
    ) -> list[tuple[Tensor, Tensor]]:
        """Adds up the gradients of each row, those of lower ranks first.

        Args:
            wire: Gradients of the entries, in wire order.
            selection: Of which entries.
            of_rows: By table, the rows that the entries belong to, bool; None: all.

        Returns:
            By table: rows, and the sums of their gradients of shape ``[rows, width]``.
        """
        sums = []
        parts = wire.split(self.sizes(selection))
        offsets = [0] * len(parts)
        for table, shard in enumerate(self._shards):
            rows, targets = self.rows[table], None
            if of_rows is not None:
                targets = of_rows[table].cumsum(0) - 1
                rows = rows[of_rows[table]]
            total = wire.new_zeros((len(rows), shard.width))
            for peer, tables in enumerate(self._places):
                places = tables[table]
                if selection is not None:
                    places = places[selection.entries[peer][table]]
                if targets is not None:
                    places = targets[places]
                size = len(places) * shard.width
                piece = parts[peer][offsets[peer] : offsets[peer] + size]
                total.index_add_(0, places, piece.view(len(places), shard.width))
                offsets[peer] += size
            sums.append((rows, total))
        return sums


def _sorted(positions: Tensor, dedup: bool) -> tuple[Tensor, Tensor]:
    if dedup:
        distinct, inverse = torch.unique(positions, return_inverse=True)
        return distinct, inverse
    ascending, order = torch.sort(positions, stable=True)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order), device=order.device)
    return ascending, inverse


def _counts(whole: list[list[int]], selection: Selection | None) -> list[list[int]]:
    if selection is None:
        return whole
    return [[len(entries) for entries in peer] for peer in selection.entries]


def _length(rows: slice | Tensor) -> int:
    return len(rows) if isinstance(rows, Tensor) else rows.stop - rows.start
