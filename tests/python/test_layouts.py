"""Tensors that are not contiguous, as inputs and as outputs."""

import pytest
import torch
import torch.distributed as dist

from freescale_pg import functional
from harness.data import arbitrary, assert_same_bits, numbers, poisoned
from harness.launch import Launcher

pytestmark = pytest.mark.freescale_only

ROWS, COLUMNS = 12, 4

LAYOUTS = [
    "contiguous",
    "transposed",
    "every other column",
    "tail of a wider row",
    "reversed order",
]


def laid_out(contents: torch.Tensor, layout: str) -> torch.Tensor:
    """Returns the contents in memory laid out otherwise; the bytes around them are poison."""
    rows, columns = contents.shape
    if layout == "contiguous":
        view = poisoned((rows, columns))
    elif layout == "transposed":
        view = poisoned((columns, rows)).t()
    elif layout == "every other column":
        view = poisoned((rows, 2 * columns))[:, ::2]
    elif layout == "tail of a wider row":
        view = poisoned((rows, columns + 3))[:, 3:]
    else:
        view = poisoned((columns, 1, rows)).permute(2, 1, 0).squeeze(1)
    view.copy_(contents)
    return view


def surroundings(view: torch.Tensor) -> torch.Tensor:
    """All bytes of the view's storage that do not belong to it."""
    whole = torch.empty(0, dtype=view.dtype).set_(view.untyped_storage())
    mask = torch.ones_like(whole, dtype=torch.bool)
    mask.as_strided(view.shape, view.stride(), view.storage_offset()).fill_(False)
    return whole[mask]


def assert_surroundings_untouched(view: torch.Tensor, what: object) -> None:
    around = surroundings(view)
    assert_same_bits(around, poisoned(tuple(around.shape)), f"{what}: bytes around the output")


def contents(rank: int, salt: object = "") -> torch.Tensor:
    return arbitrary((ROWS, COLUMNS), key=("layout", rank, salt))


def blank(rows: int, layout: str) -> torch.Tensor:
    return laid_out(poisoned((rows, COLUMNS)), layout)


def check_all_to_all(rank: int, size: int) -> None:
    part = ROWS // size
    for given in LAYOUTS:
        for taken in LAYOUTS:
            output = blank(ROWS, taken)
            dist.all_to_all_single(output, laid_out(contents(rank), given))
            parts = [contents(peer)[part * rank : part * (rank + 1)] for peer in range(size)]
            assert_same_bits(output, torch.cat(parts), (given, taken))
            assert_surroundings_untouched(output, (given, taken))


def check_all_gather(rank: int, size: int) -> None:
    for given in LAYOUTS:
        for taken in LAYOUTS:
            outputs = [blank(ROWS, taken) for _ in range(size)]
            dist.all_gather(outputs, laid_out(contents(rank), given))
            whole = blank(ROWS * size, taken)
            dist.all_gather_into_tensor(whole, laid_out(contents(rank), given))
            for peer in range(size):
                assert_same_bits(outputs[peer], contents(peer), (given, taken))
                assert_surroundings_untouched(outputs[peer], (given, taken))
            assert_same_bits(
                whole, torch.cat([contents(peer) for peer in range(size)]), (given, taken)
            )
            assert_surroundings_untouched(whole, (given, taken))


def check_rooted(rank: int, size: int) -> None:
    for layout in LAYOUTS:
        tensor = laid_out(contents(0), layout) if rank == 0 else blank(ROWS, layout)
        dist.broadcast(tensor, 0)
        assert_same_bits(tensor, contents(0), layout)
        assert_surroundings_untouched(tensor, layout)

        output = blank(ROWS, layout)
        pieces = [laid_out(contents(peer), layout) for peer in range(size)]
        dist.scatter(output, pieces if rank == 0 else None, src=0)
        assert_same_bits(output, contents(rank), layout)

        outputs = [blank(ROWS, layout) for _ in range(size)] if rank == 0 else None
        dist.gather(laid_out(contents(rank), layout), outputs, dst=0)
        for peer, gathered in enumerate(outputs or []):
            assert_same_bits(gathered, contents(peer), layout)


def check_all_reduce(rank: int, size: int) -> None:
    values = [torch.full((ROWS, COLUMNS), float(peer + 1)) for peer in range(size)]
    for layout in LAYOUTS:
        tensor = laid_out(values[rank], layout)
        dist.all_reduce(tensor)
        assert_same_bits(tensor, sum(values[1:], values[0]), layout)
        assert_surroundings_untouched(tensor, layout)


def check_reduce_scatter(rank: int, size: int) -> None:
    values = torch.arange(float(ROWS * COLUMNS)).reshape(ROWS, COLUMNS)
    part = ROWS // size
    for given in LAYOUTS:
        for taken in LAYOUTS:
            output = blank(part, taken)
            dist.reduce_scatter_tensor(output, laid_out(values * (rank + 1), given))
            total = values * (size * (size + 1) / 2)
            assert_same_bits(output, total[part * rank : part * (rank + 1)], (given, taken))
            assert_surroundings_untouched(output, (given, taken))


def check_send(rank: int, size: int) -> None:
    for given in LAYOUTS:
        for taken in LAYOUTS:
            if rank == 0:
                dist.send(laid_out(contents(0), given), 1)
            else:
                received = blank(ROWS, taken)
                dist.recv(received, 0)
                assert_same_bits(received, contents(0), (given, taken))
                assert_surroundings_untouched(received, (given, taken))


def check_expanded_input(rank: int, size: int) -> None:
    row = arbitrary((1, COLUMNS), key=("expanded", rank))
    output = poisoned((ROWS, COLUMNS))
    dist.all_to_all_single(output, row.expand(ROWS, COLUMNS))
    parts = [
        arbitrary((1, COLUMNS), key=("expanded", peer)).expand(ROWS // size, COLUMNS)
        for peer in range(size)
    ]
    assert_same_bits(output, torch.cat(parts), "one row, expanded")


def check_strides_of_single_rows(rank: int, size: int) -> None:
    """The stride of a dimension of one element means nothing."""
    given = torch.empty(1, 2, 2).as_strided((1, 2, 2), (77 + rank, 2, 1))
    given.copy_(contents(rank)[:1].view(1, 2, 2))
    output = poisoned((size, 2, 2)).as_strided((size, 2, 2), (4, 2, 1))
    dist.all_gather_into_tensor(output, given)
    expected = torch.cat([contents(peer)[:1].view(1, 2, 2) for peer in range(size)])
    assert_same_bits(output, expected, "odd strides")


def check_channels_last_on_one_rank(rank: int, size: int) -> None:
    """Values go by their indices, whatever the memory format on each rank."""
    shape = (2, 3, 2, 2)

    def image(peer: int) -> torch.Tensor:
        return arbitrary(shape, key=("image", peer))

    chosen = torch.channels_last if rank == 1 else torch.contiguous_format
    given = image(rank).to(memory_format=chosen)
    outputs = [poisoned(shape).to(memory_format=chosen) for _ in range(size)]
    dist.all_gather(outputs, given)
    exchanged = poisoned(shape).to(memory_format=chosen)
    dist.all_to_all_single(exchanged, given)
    for peer in range(size):
        assert_same_bits(outputs[peer], image(peer), peer)
    expected = torch.cat([image(peer)[rank : rank + 1] for peer in range(size)])
    assert_same_bits(exchanged, expected, "exchange")


def check_conjugate_views(rank: int, size: int) -> None:
    """A view with the conjugate bit is sent as the values it stands for."""
    for dtype in (torch.complex64, torch.complex128):

        def given(peer: int, dtype: torch.dtype = dtype) -> torch.Tensor:
            return numbers((size, 3), dtype, key=("conjugate", peer))

        row = [given(peer)[rank : rank + 1].conj().resolve_conj() for peer in range(size)]
        output = functional.all_to_all_single(given(rank).conj())
        assert_same_bits(output, torch.cat(row), ("functional", dtype))
        output = poisoned((size, 3), dtype)
        dist.group.WORLD.alltoall_base(output, given(rank).conj(), [], []).wait()
        assert_same_bits(output, torch.cat(row), ("group", dtype))


def check_overlapping_output(rank: int, size: int) -> None:
    output = torch.zeros(COLUMNS).expand(ROWS, COLUMNS)
    with_error = 0
    try:
        dist.all_to_all_single(output, contents(rank))
    except (RuntimeError, ValueError) as error:
        with_error += 1
        assert "overlap" in str(error), error
    try:
        dist.all_gather([torch.zeros(4).expand(4, 4)] * size, torch.zeros(4, 4))
    except (RuntimeError, ValueError) as error:
        with_error += 1
        assert "overlap" in str(error), error
    assert with_error == 2
    dist.barrier()


def test_all_to_all(launch: Launcher) -> None:
    launch(check_all_to_all, 3)


def test_all_gather(launch: Launcher) -> None:
    launch(check_all_gather, 2)


def test_rooted(launch: Launcher) -> None:
    launch(check_rooted, 3)


def test_all_reduce(launch: Launcher) -> None:
    launch(check_all_reduce, 3)


def test_reduce_scatter(launch: Launcher) -> None:
    launch(check_reduce_scatter, 3)


def test_send(launch: Launcher) -> None:
    launch(check_send, 2)


def test_expanded_input(launch: Launcher) -> None:
    launch(check_expanded_input, 3)


def test_output_that_overlaps_itself_is_refused(launch: Launcher) -> None:
    launch(check_overlapping_output, 2)


def test_strides_of_single_rows(launch: Launcher) -> None:
    launch(check_strides_of_single_rows, 3)


def test_channels_last_on_one_rank(launch: Launcher) -> None:
    launch(check_channels_last_on_one_rank, 2)


def test_conjugate_views(launch: Launcher) -> None:
    launch(check_conjugate_views, 2)
