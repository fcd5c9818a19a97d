"""How a rank makes each kind of call that a program may hold."""

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist

import freescale_pg as fs
from harness.call_site import CallSite, reduced
from harness.layout import LAYOUTS

# Tensors of one coalesced call.
SEVERAL = 3
# A part of a tensor in place is a view of the same memory only if that is not staged.
CONTIGUOUS = LAYOUTS.index("contiguous")


def present(*works: dist.Work | None) -> list[dist.Work]:
    """The works among them: blocking calls return none."""
    return [work for work in works if work is not None]


def all_to_all_single(site: CallSite) -> list[dist.Work]:
    arriving, leaving = _splits(site)
    output, given = _exchanged(site, arriving, leaving)
    work = fs.all_to_all_single(
        site.taken(output),
        site.given(given),
        arriving,
        leaving,
        group=site.group,
        priority=site.priority,
        async_op=site.asynchronous,
    )
    return present(work)


def all_to_all_single_equal(site: CallSite) -> list[dist.Work]:
    shares = [site.rows(0, 0)] * site.size
    output, given = _exchanged(site, shares, shares)
    return present(
        dist.all_to_all_single(
            site.taken(output), site.given(given), group=site.group, async_op=site.asynchronous
        )
    )


def functional_all_to_all_single(site: CallSite) -> list[dist.Work]:
    arriving, leaving = _splits(site)
    output, given = _exchanged(site, arriving, leaving)
    received = fs.functional.all_to_all_single(
        site.given(given), arriving, leaving, group=site.group, priority=site.priority
    )
    site.returned(received, output)
    return []


def all_to_all(site: CallSite) -> list[dist.Work]:
    arriving, leaving = _splits(site)
    outputs = [
        site.taken(site.piece(rows, sender, site.me)) for sender, rows in enumerate(arriving)
    ]
    given = [
        site.given(site.piece(rows, site.me, receiver)) for receiver, rows in enumerate(leaving)
    ]
    return present(dist.all_to_all(outputs, given, group=site.group, async_op=site.asynchronous))


def all_gather(site: CallSite) -> list[dist.Work]:
    pieces = [site.piece(site.rows(sender, 0), sender) for sender in range(site.size)]
    outputs = [site.taken(piece) for piece in pieces]
    return present(
        dist.all_gather(
            outputs, site.given(pieces[site.me]), group=site.group, async_op=site.asynchronous
        )
    )


def all_gather_into_tensor(site: CallSite) -> list[dist.Work]:
    pieces = _equal_pieces(site)
    work = fs.all_gather_into_tensor(
        site.taken(torch.cat(pieces)),
        site.given(pieces[site.me]),
        group=site.group,
        priority=site.priority,
        async_op=site.asynchronous,
    )
    return present(work)


def all_gather_into_stack(site: CallSite) -> list[dist.Work]:
    pieces = _equal_pieces(site)
    return present(
        dist.all_gather_into_tensor(
            site.taken(torch.stack(pieces)),
            site.given(pieces[site.me]),
            group=site.group,
            async_op=site.asynchronous,
        )
    )


def all_gather_in_place(site: CallSite) -> list[dist.Work]:
    """The input is the own part of the output."""
    pieces = _equal_pieces(site)
    rows = len(pieces[0])
    whole = site.taken(torch.cat(pieces), CONTIGUOUS)
    given = whole[site.me * rows : (site.me + 1) * rows]
    given.copy_(pieces[site.me])
    return present(
        dist.all_gather_into_tensor(whole, given, group=site.group, async_op=site.asynchronous)
    )


def all_gather_of_several(site: CallSite) -> list[dist.Work]:
    def call(number: int) -> None:
        pieces = _equal_pieces(site, number)
        dist.all_gather_into_tensor(
            site.taken(torch.cat(pieces)), site.given(pieces[site.me]), group=site.group
        )

    return _coalesced(site, call)


def all_gather_coalesced(site: CallSite) -> list[dist.Work]:
    pieces = [_equal_pieces(site, number) for number in range(SEVERAL)]
    outputs = [
        [site.taken(pieces[number][sender]) for number in range(SEVERAL)]
        for sender in range(site.size)
    ]
    given = [site.given(of_number[site.me]) for of_number in pieces]
    # torch.distributed's own form is deprecated, and returns a future instead of a work.
    return _finished(site, [site.group.allgather_coalesced(outputs, given)])


def functional_all_gather_single(site: CallSite) -> list[dist.Work]:
    pieces = _equal_pieces(site)
    gathered = fs.functional.all_gather_single(
        site.given(pieces[site.me]), group=site.group, priority=site.priority
    )
    site.returned(gathered, torch.cat(pieces))
    return []


def broadcast(site: CallSite) -> list[dist.Work]:
    contents = site.piece(site.rows(0, 0))
    tensor = site.given(contents) if site.me == site.root else site.taken(contents)
    return present(
        dist.broadcast(tensor, site.global_root, group=site.group, async_op=site.asynchronous)
    )


def scatter(site: CallSite) -> list[dist.Work]:
    pieces = _equal_pieces(site)
    given = [site.given(piece) for piece in pieces] if site.me == site.root else None
    return present(
        dist.scatter(
            site.taken(pieces[site.me]),
            given,
            src=site.global_root,
            group=site.group,
            async_op=site.asynchronous,
        )
    )


def gather(site: CallSite) -> list[dist.Work]:
    pieces = _equal_pieces(site)
    outputs = [site.taken(piece) for piece in pieces] if site.me == site.root else None
    return present(
        dist.gather(
            site.given(pieces[site.me]),
            outputs,
            dst=site.global_root,
            group=site.group,
            async_op=site.asynchronous,
        )
    )


def all_reduce(site: CallSite) -> list[dist.Work]:
    return present(_all_reduce(site, 0, site.asynchronous))


def all_reduce_of_several(site: CallSite) -> list[dist.Work]:
    return _coalesced(site, lambda number: _all_reduce(site, number, asynchronous=False))


def reduce(site: CallSite) -> list[dist.Work]:
    parts = _equal_pieces(site)
    if site.me == site.root:
        tensor = site.changed(parts[site.me], reduced(site.call.op, parts))
    else:
        tensor = site.given(parts[site.me])
    return present(
        dist.reduce(tensor, site.global_root, site.op, group=site.group, async_op=site.asynchronous)
    )


def reduce_scatter(site: CallSite) -> list[dist.Work]:
    rows = [site.rows(0, receiver) for receiver in range(site.size)]
    given = [site.given(site.piece(rows[peer], site.me, peer)) for peer in range(site.size)]
    parts = [site.piece(rows[site.me], sender, site.me) for sender in range(site.size)]
    return present(
        dist.reduce_scatter(
            site.taken(reduced(site.call.op, parts)),
            given,
            site.op,
            group=site.group,
            async_op=site.asynchronous,
        )
    )


def reduce_scatter_tensor(site: CallSite) -> list[dist.Work]:
    given, expected = _shares(site, torch.cat)
    return present(_reduce_scatter(site, site.taken(expected), site.given(given)))


def reduce_scatter_stack(site: CallSite) -> list[dist.Work]:
    given, expected = _shares(site, torch.stack)
    return present(_reduce_scatter(site, site.taken(expected), site.given(given)))


def reduce_scatter_in_place(site: CallSite) -> list[dist.Work]:
    """The output is the own part of the input, whose other parts stay as they are."""
    given, expected = _shares(site, torch.cat)
    rows = len(expected)
    mine = slice(site.me * rows, (site.me + 1) * rows)
    after = given.clone()
    after[mine].copy_(expected)
    whole = site.changed(given, after, CONTIGUOUS)
    return present(_reduce_scatter(site, whole[mine], whole))


def reduce_scatter_of_several(site: CallSite) -> list[dist.Work]:
    def call(number: int) -> None:
        given, expected = _shares(site, torch.cat, number)
        dist.reduce_scatter_tensor(
            site.taken(expected), site.given(given), site.op, group=site.group
        )

    return _coalesced(site, call)


def send_and_receive(site: CallSite) -> list[dist.Work]:
    works = [
        dist.irecv(tensor, group=site.group, group_src=peer, tag=site.call.tag)
        for peer, tensor in _incoming(site)
    ]
    works += [
        dist.isend(tensor, group=site.group, group_dst=peer, tag=site.call.tag)
        for peer, tensor in _outgoing(site)
    ]
    return _finished(site, present(*works))


def batch_isend_irecv(site: CallSite) -> list[dist.Work]:
    ops = [
        dist.P2POp(dist.isend, tensor, group=site.group, group_peer=peer, tag=site.call.tag)
        for peer, tensor in _outgoing(site)
    ]
    ops += [
        dist.P2POp(dist.irecv, tensor, group=site.group, group_peer=peer, tag=site.call.tag)
        for peer, tensor in _incoming(site)
    ]
    return _finished(site, dist.batch_isend_irecv(ops) if ops else [])


def barrier(site: CallSite) -> list[dist.Work]:
    return present(dist.barrier(site.group, async_op=site.asynchronous))


ISSUERS: dict[str, Callable[[CallSite], list[dist.Work]]] = {
    issuer.__name__: issuer
    for issuer in (
        all_to_all_single,
        all_to_all_single_equal,
        functional_all_to_all_single,
        all_to_all,
        all_gather,
        all_gather_into_tensor,
        all_gather_into_stack,
        all_gather_in_place,
        all_gather_of_several,
        all_gather_coalesced,
        functional_all_gather_single,
        broadcast,
        scatter,
        gather,
        all_reduce,
        all_reduce_of_several,
        reduce,
        reduce_scatter,
        reduce_scatter_tensor,
        reduce_scatter_stack,
        reduce_scatter_in_place,
        reduce_scatter_of_several,
        send_and_receive,
        batch_isend_irecv,
        barrier,
    )
}


def _splits(site: CallSite) -> tuple[list[int], list[int]]:
    """Rows that come from, and go to, each rank."""
    peers = range(site.size)
    return [site.rows(p, site.me) for p in peers], [site.rows(site.me, p) for p in peers]


def _exchanged(
    site: CallSite, arriving: list[int], leaving: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """What an all_to_all_single must bring, and what it is given."""
    output = [site.piece(rows, sender, site.me) for sender, rows in enumerate(arriving)]
    given = [site.piece(rows, site.me, receiver) for receiver, rows in enumerate(leaving)]
    return torch.cat(output), torch.cat(given)


def _equal_pieces(site: CallSite, number: int = 0) -> list[torch.Tensor]:
    """One piece of each rank, all of the same shape."""
    rows = site.rows(0, number % site.size)
    return [site.piece(rows, rank, number) for rank in range(site.size)]


def _shares(
    site: CallSite, join: Callable[[list[torch.Tensor]], torch.Tensor], number: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """What a reduce-scatter is given and must bring, with equal shares."""
    rows = site.rows(0, number % site.size)
    given = [site.piece(rows, number, site.me, peer) for peer in range(site.size)]
    parts = [site.piece(rows, number, sender, site.me) for sender in range(site.size)]
    return join(given), reduced(site.call.op, parts)


def _all_reduce(site: CallSite, number: int, asynchronous: bool) -> dist.Work | None:
    parts = _equal_pieces(site, number)
    tensor = site.changed(parts[site.me], reduced(site.call.op, parts))
    work: dist.Work | None = dist.all_reduce(
        tensor, site.op, group=site.group, async_op=asynchronous
    )
    return work


def _reduce_scatter(site: CallSite, output: torch.Tensor, given: torch.Tensor) -> dist.Work | None:
    work: dist.Work | None = dist.reduce_scatter_tensor(
        output, given, site.op, group=site.group, async_op=site.asynchronous
    )
    return work


def _coalesced(site: CallSite, call: Callable[[int], object]) -> list[dist.Work]:
    with dist._coalescing_manager(group=site.group, async_ops=site.asynchronous) as manager:
        for number in range(SEVERAL):
            call(number)
    return list(manager.works) if site.asynchronous else []


def _pairs(site: CallSite) -> Iterable[tuple[int, int]]:
    """Senders and receivers of messages; a few of no bytes are among them."""
    for sender in range(site.size):
        for receiver in range(site.size):
            if sender != receiver and (site.rows(sender, receiver) or (sender + receiver) % 3 == 0):
                yield sender, receiver


def _incoming(site: CallSite) -> list[tuple[int, torch.Tensor]]:
    return [
        (sender, site.taken(site.piece(site.rows(sender, receiver), sender, receiver)))
        for sender, receiver in _pairs(site)
        if receiver == site.me
    ]


def _outgoing(site: CallSite) -> list[tuple[int, torch.Tensor]]:
    return [
        (receiver, site.given(site.piece(site.rows(sender, receiver), sender, receiver)))
        for sender, receiver in _pairs(site)
        if sender == site.me
    ]


def _finished(site: CallSite, works: list[dist.Work]) -> list[dist.Work]:
    """Waits if the call is a blocking one."""
    if site.asynchronous:
        return works
    for work in works:
        work.wait()
    return []
