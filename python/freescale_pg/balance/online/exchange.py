"""Moves samples between ranks."""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from freescale_pg._priority import Priority
from freescale_pg.balance.online.announcement import Announcements
from freescale_pg.balance.online.columns import (
    Column,
    ColumnType,
    concatenate,
    pack,
    take,
    unpack,
)
from freescale_pg.balance.online.routing import Integers, Route
from freescale_pg.operators import all_to_all_single


def exchange(
    columns: Sequence[Column],
    types: Sequence[ColumnType],
    route: Route,
    announced: Announcements,
    group: dist.ProcessGroup,
) -> list[Column]:
    """Sends samples to other ranks and returns those that this one then has; collective.

    One exchange of bytes for all fields, whatever their dtypes: each message has a fixed price, and
    the few samples that move have to be copied out of their batch anyway.

    Args:
        columns: The own samples.
        types: Of the columns, the same on all ranks.
        route: What goes where.
        announced: What all ranks have said of the samples, their sizes above all.
        group: The ranks.
    """
    packed = [pack(_taken(columns, places)) if len(places) else None for places in route.sends]
    received = [
        int(sizes[places].sum())
        for sizes, places in zip(announced.sizes, route.arrivals, strict=True)
    ]
    output = torch.empty(sum(received), dtype=torch.uint8)
    pieces = [piece for piece in packed if piece is not None]
    all_to_all_single(
        output,
        torch.cat(pieces) if pieces else output.new_empty(0),
        received,
        [0 if piece is None else len(piece) for piece in packed],
        group=group,
        priority=Priority.LOW,
    )
    arrived = [
        unpack(types, len(places), piece)
        for places, piece in zip(route.arrivals, output.split(received), strict=True)
        if len(places)
    ]
    parts = [_taken(columns, route.kept), *arrived]
    result = [concatenate(column) for column in zip(*parts, strict=True)]
    return result if route.order is None else _taken(result, route.order)


def _taken(columns: Sequence[Column], places: Integers) -> list[Column]:
    indices = torch.from_numpy(places)
    return [take(column, indices) for column in columns]
