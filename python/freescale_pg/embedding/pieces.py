"""The order of what travels for several tables between many ranks.

What goes to, or comes from, the peers is cut into *pieces*, one for each peer and table, and a
piece consists of *entries*, one for each row. On the wire pieces lie peer by peer, those of a peer
table by table; where tables are read and written, table by table, those of a table peer by peer.
All pieces are moved from one order to the other at once: a loop over 64 peers and 26 tables would
take 25 ms for every message.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


class Pieces:
    """How many entries each piece has.

    Attributes:
        counts: int64 on the CPU, shape ``[peers, tables]``.
    """

    def __init__(self, counts: Tensor) -> None:
        self.counts = counts

    def of_peers(self, widths: Tensor | None = None) -> list[int]:
        """Returns how many values each peer has.

        Args:
            widths: Values in an entry, as ``counts``; None: one.
        """
        sizes: list[int] = self._sizes(widths).sum(1).tolist()
        return sizes

    def of_tables(self, widths: Tensor | None = None) -> list[int]:
        """Returns how many values each table has."""
        sizes: list[int] = self._sizes(widths).sum(0).tolist()
        return sizes

    def to_tables(self, wire: Tensor, widths: Tensor | None = None) -> tuple[Tensor, ...]:
        """Takes the tables' values from the wire.

        Args:
            wire: One dimension.
            widths: Values in an entry; None: one.
        """
        order = self._order(widths, wire.device)
        if order is not None:
            block, places = order
            wire = wire.view(-1, block).index_select(0, places).view(-1)
        tables: tuple[Tensor, ...] = wire.split(self.of_tables(widths))
        return tables

    def to_wire(self, tables: Sequence[Tensor], widths: Tensor | None = None) -> Tensor:
        """Puts the tables' values, of any shape, on the wire."""
        joined = torch.cat([table.reshape(-1) for table in tables])
        order = self._order(widths, joined.device)
        if order is None:
            return joined
        block, places = order
        wire = torch.empty_like(joined)
        wire.view(-1, block).index_copy_(0, places, joined.view(-1, block))
        return wire

    def of_selected(self, masks: Sequence[Tensor]) -> "Pieces":
        """Returns the pieces of some entries.

        Args:
            masks: By table, of each entry; bool.
        """
        chosen = torch.cat([masks[0].new_zeros(1), *masks]).cumsum(0)
        ends = self.counts.T.reshape(-1).cumsum(0).to(chosen.device)
        totals = torch.cat([ends.new_zeros(1), chosen[ends]]).cpu()
        return Pieces(totals.diff().view(self.counts.shape[::-1]).T)

    def _sizes(self, widths: Tensor | None) -> Tensor:
        return self.counts if widths is None else self.counts * widths

    def _order(self, widths: Tensor | None, device: torch.device) -> tuple[int, Tensor] | None:
        """Returns where on the wire the blocks of the tables' order lie, and the size of a block.

        None: both orders are the same. Blocks are as large as every piece allows, since one index
        for each value would take more memory than the values.
        """
        if 1 in self.counts.shape:
            return None
        sizes = self._sizes(widths)
        block = 1 if widths is None else max(1, math.gcd(*widths.flatten().tolist()))
        blocks = sizes // block
        on_wire = (blocks.flatten().cumsum(0) - blocks.flatten()).view(blocks.shape)
        by_table = blocks.T.reshape(-1)
        shifts = on_wire.T.reshape(-1) - (by_table.cumsum(0) - by_table)
        total = int(by_table.sum())
        places = torch.arange(total) + shifts.repeat_interleave(by_table, output_size=total)
        return block, places.to(device)
