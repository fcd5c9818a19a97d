"""What the ranks want of each other's tables for one batch, from both ends.

A :class:`Request` is what this rank asks for, a :class:`Demand` what all ask of its shards. Both
consist of :class:`~freescale_pg.embedding.pieces.Pieces`, and each entry of the one is an entry of
the other on another rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from freescale_pg.embedding.pieces import Pieces
from freescale_pg.embedding.placement import Placement
from freescale_pg.embedding.shard import TableShard


@dataclass(frozen=True)
class Selection:
    """Some entries.

    Attributes:
        entries: By table: indices of the entries of all peers, ascending; int64.
        pieces: Theirs.
    """

    entries: list[Tensor]
    pieces: Pieces

    @staticmethod
    def of(pieces: Pieces, masks: Sequence[Tensor]) -> tuple["Selection", "Selection"]:
        """Returns the entries whose mask is set, and the others.

        Args:
            pieces: Of all entries.
            masks: By table, of each entry; bool.
        """
        chosen = pieces.of_selected(masks)
        return (
            Selection([mask.nonzero()[:, 0] for mask in masks], chosen),
            Selection(
                [(~mask).nonzero()[:, 0] for mask in masks], Pieces(pieces.counts - chosen.counts)
            ),
        )


class Request:
    """What one batch of this rank needs.

    Attributes:
        positions: By table: the positions of the rows, ascending; each once, or with duplicates as
            often as it occurs. int64.
        pieces: What each peer is asked for. Of a table that is cut by columns, every peer that
            holds any is asked for all rows.
    """

    def __init__(
        self,
        placements: Sequence[Placement],
        ids: Sequence[Sequence[Tensor]],
        *,
        dedup: bool,
        device: torch.device,
    ) -> None:
        """Sorts what is asked for by holder.

        Args:
            placements: Of the tables.
            ids: By table, any number of tensors with valid ids; integers, shape ``[n]``.
            dedup: Ask for each row once.
            device: Of the ids, also where there are none.
        """
        self._placements = placements
        self._given: list[list[tuple[Tensor, Tensor]]] = []
        self.positions: list[Tensor] = []
        for placement, tensors in zip(placements, ids, strict=True):
            nothing = torch.empty(0, dtype=torch.int64, device=device)
            joined = torch.cat(list(tensors)) if tensors else nothing
            positions, inverse = _sorted(placement.positions(joined), dedup)
            sizes = [len(tensor) for tensor in tensors]
            self.positions.append(positions)
            self._given.append(list(zip(tensors, inverse.split(sizes), strict=True)))
        self.pieces = Pieces(
            torch.stack(
                [
                    _entries_of_peers(placement, positions)
                    for placement, positions in zip(placements, self.positions, strict=True)
                ],
                dim=1,
            )
        )
        self._widths = torch.tensor(
            [[len(shard.columns) for shard in placement.shards] for placement in placements]
        ).T

    def find(self, table: int, ids: Tensor) -> Tensor | None:
        """Returns where the rows of ids stand among ``positions``; None: not all do.

        Args:
            table: Index of the table.
            ids: Integers, shape ``[n]``.
        """
        for known, places in self._given[table]:
            if known is ids or (known.shape == ids.shape and torch.equal(known, ids)):
                return places
        positions, wanted = self.positions[table], self._placements[table].positions(ids)
        if not len(positions):
            return None if len(wanted) else wanted
        places = torch.searchsorted(positions, wanted).clamp_(max=len(positions) - 1)
        return places if torch.equal(positions[places], wanted) else None

    def wire_rows(self, dtype: torch.dtype) -> Tensor:
        """Returns the rows within their holders' shards, in wire order."""
        rows = []
        for table, (placement, positions) in enumerate(
            zip(self._placements, self.positions, strict=True)
        ):
            asked = self.pieces.counts[:, table]
            entries = int(asked.sum())
            # Every holder of columns is asked for all.
            everyone = positions.repeat(entries // max(1, len(positions)))
            starts = torch.tensor([shard.rows.start for shard in placement.shards])
            first = starts.repeat_interleave(asked, output_size=entries).to(positions.device)
            rows.append((everyone - first).to(dtype))
        return self.pieces.to_wire(rows)

    def empty_vectors(self, dtype: torch.dtype) -> list[Tensor]:
        """Returns room for the vectors; by table, shape ``[entries, dim]``."""
        return [
            positions.new_empty((len(positions), placement.table.dim), dtype=dtype)
            for positions, placement in zip(self.positions, self._placements, strict=True)
        ]

    def masks(self, wire: Tensor) -> list[Tensor]:
        """Returns what is said of each entry on the wire; by table, bool."""
        return [told.to(torch.bool) for told in self.pieces.to_tables(wire)]

    def sizes(self, selection: Selection | None) -> list[int]:
        """Returns how many values come from, or go to, each peer."""
        return self._pieces(selection).of_peers(self._widths)

    def store(self, wire: Tensor, selection: Selection | None, vectors: list[Tensor]) -> None:
        """Puts what came into ``vectors``, by table, shape ``[entries, dim]``."""
        values = self._pieces(selection).to_tables(wire, self._widths)
        for table, given in enumerate(values):
            for rows, columns, piece in self._parts(table, selection):
                room = vectors[table][:, columns]
                part = given[piece].view(-1, room.shape[1])
                if rows is None:
                    room.copy_(part)
                else:
                    room.index_copy_(0, rows, part)

    def gather(self, gradients: Sequence[Tensor], selection: Selection | None) -> Tensor:
        """Returns gradients of vectors in wire order; those of :meth:`store`."""
        values = [gradients[0].new_empty(0)]
        for table, of_table in enumerate(gradients):
            for rows, columns, _ in self._parts(table, selection):
                part = of_table[:, columns]
                values.append(part if rows is None else part.index_select(0, rows))
        return self._pieces(selection).to_wire(values, self._widths)

    def _pieces(self, selection: Selection | None) -> Pieces:
        return self.pieces if selection is None else selection.pieces

    def _parts(
        self, table: int, selection: Selection | None
    ) -> list[tuple[Tensor | None, slice, slice]]:
        """Returns which rows (None: all) and columns travel, and where among the table's values.

        One part, but for tables that are cut by columns: there one for each peer with any.
        """
        chosen = None if selection is None else selection.entries[table]
        placement = self._placements[table]
        if placement.table.sharding != "column":
            return [(chosen, slice(0, placement.table.dim), slice(None))]
        parts, first = [], 0
        counts = self._pieces(selection).counts[:, table].tolist()
        by_peer = [None] * len(counts) if chosen is None else chosen.split(counts)
        for shard, count, entries in zip(placement.shards, counts, by_peer, strict=True):
            columns = slice(shard.columns.start, shard.columns.stop)
            size = count * len(shard.columns)
            rows = None if entries is None else entries % max(1, len(self.positions[table]))
            if size:
                parts.append((rows, columns, slice(first, first + size)))
            first += size
        return parts


class Demand:
    """What all ranks ask of this rank's shards for one batch.

    Attributes:
        rows: By table: the rows that are asked for by anybody, ascending, each once; int64.
        pieces: What each peer asks for.
    """

    def __init__(self, shards: Sequence[TableShard], pieces: Pieces, wire_rows: Tensor) -> None:
        """Sorts what came.

        Args:
            shards: This rank's, by table.
            pieces: What each peer asks for.
            wire_rows: Rows within the shards, in wire order.
        """
        self._shards = shards
        self.pieces = pieces
        self.rows: list[Tensor] = []
        # By table, where the row of each entry stands in ``rows``.
        self._places: list[Tensor] = []
        for entries in pieces.to_tables(wire_rows):
            rows, places = torch.unique(entries.to(torch.int64), return_inverse=True)
            self.rows.append(rows)
            self._places.append(places)
        self._widths = torch.tensor([shard.width for shard in shards]).expand(pieces.counts.shape)

    def shared_with(self, other: "Demand") -> list[Tensor]:
        """Returns which of ``rows`` another batch also needs; by table, bool."""
        return [
            torch.isin(own, others, assume_unique=True)
            for own, others in zip(self.rows, other.rows, strict=True)
        ]

    def masks(self, of_rows: Sequence[Tensor]) -> list[Tensor]:
        """Returns for each entry what is said of its row; by table."""
        return [said[places] for said, places in zip(of_rows, self._places, strict=True)]

    def wire_masks(self, of_rows: Sequence[Tensor]) -> Tensor:
        """Returns the same in wire order; uint8."""
        return self.pieces.to_wire(self.masks(of_rows)).to(torch.uint8)

    def sizes(self, selection: Selection | None) -> list[int]:
        """Returns how many values go to, or come from, each peer."""
        return self._pieces(selection).of_peers(self._widths)

    @torch.no_grad()
    def look_up(self, selection: Selection | None) -> Tensor:
        """Returns the vectors of the entries, in wire order."""
        values = [
            shard.weight.index_select(0, rows[self._chosen(table, selection)])
            for table, (shard, rows) in enumerate(zip(self._shards, self.rows, strict=True))
        ]
        return self._pieces(selection).to_wire(values, self._widths)

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
        values = self._pieces(selection).to_tables(wire, self._widths)
        for table, (shard, given) in enumerate(zip(self._shards, values, strict=True)):
            rows, targets = self.rows[table], self._chosen(table, selection)
            if of_rows is not None:
                targets = (of_rows[table].cumsum(0) - 1)[targets]
                rows = rows[of_rows[table]]
            total = wire.new_zeros((len(rows), shard.width))
            # In the order of the entries, so of the peers: on the CPU one after the other.
            total.index_add_(0, targets, given.view(len(targets), shard.width))
            sums.append((rows, total))
        return sums

    def _pieces(self, selection: Selection | None) -> Pieces:
        return self.pieces if selection is None else selection.pieces

    def _chosen(self, table: int, selection: Selection | None) -> Tensor:
        places = self._places[table]
        return places if selection is None else places[selection.entries[table]]


def _entries_of_peers(placement: Placement, positions: Tensor) -> Tensor:
    bounds = torch.tensor([(shard.rows.start, shard.rows.stop) for shard in placement.shards])
    ends = torch.searchsorted(positions, bounds.to(positions.device)).cpu()
    holds = torch.tensor([not shard.holds_nothing for shard in placement.shards])
    return ends.diff(dim=1)[:, 0] * holds


def _sorted(positions: Tensor, dedup: bool) -> tuple[Tensor, Tensor]:
    if dedup:
        distinct, inverse = torch.unique(positions, return_inverse=True)
        return distinct, inverse
    ascending, order = torch.sort(positions, stable=True)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order), device=order.device)
    return ascending, inverse
