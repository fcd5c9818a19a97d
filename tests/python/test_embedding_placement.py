"""Where rows and columns of an embedding table lie."""

import numpy as np
import pytest
import torch

from freescale_pg.embedding import EmbeddingTable
from freescale_pg.embedding.placement import Placement, Shard, place
from freescale_pg.embedding.table import check_tables

WORLD_SIZES = range(1, 10)


def placed(table: EmbeddingTable, world_size: int, *, spread: bool = True) -> Placement:
    return place((table,), world_size, spread=spread)[0]


def positions_of(rows: int) -> torch.Tensor:
    return placed(EmbeddingTable("t", rows, 1), 1).positions(torch.arange(rows))


def most_unbalanced_run(rows: int, world_size: int) -> float:
    """By how many ids the part of any run that a rank holds differs from its share of the rows."""
    ranks = positions_of(rows).numpy() // -(-rows // world_size)
    worst = 0.0
    for rank in range(world_size):
        mine = ranks == rank
        excess = np.cumsum(mine) - np.arange(1, rows + 1) * mine.mean()
        # A run is the difference of two beginnings, of which one may be empty.
        worst = max(worst, max(excess.max(), 0) - min(excess.min(), 0))
    return worst


def cells(shard: Shard, mask: torch.Tensor) -> torch.Tensor:
    return mask[shard.rows.start : shard.rows.stop, shard.columns.start : shard.columns.stop]


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 6, 7, 12, 100, 1000, 1462, 30_030, 65_536])
def test_every_id_has_a_position_of_its_own(rows: int) -> None:
    assert positions_of(rows).sort().values.tolist() == list(range(rows))


def test_every_small_table_is_permuted() -> None:
    for rows in range(1, 300):
        assert torch.equal(positions_of(rows).sort().values, torch.arange(rows)), rows


def test_any_run_of_ids_of_any_small_table_is_spread_evenly() -> None:
    for rows in range(1, 500):
        for world_size in (2, 3, 8):
            assert most_unbalanced_run(rows, world_size) < 4, (rows, world_size)


@pytest.mark.parametrize("rows", [1000, 1462, 10_000, 100_003, 1_000_000, 1_234_567])
def test_any_run_of_ids_of_a_large_table_is_spread_evenly(rows: int) -> None:
    for world_size in (2, 3, 5):
        assert most_unbalanced_run(rows, world_size) < 10, world_size


def test_products_of_the_largest_table_fit() -> None:
    rows = 3_037_000_499
    placement = placed(EmbeddingTable("t", rows, 1), 2)
    ids = torch.tensor([0, 1, rows - 2, rows - 1])
    expected = [int(i) * placement.multiplier % rows for i in ids]
    assert placement.positions(ids).tolist() == expected


def test_a_table_too_large_to_be_spread_says_so() -> None:
    table = EmbeddingTable("huge", 3_037_000_500, 1)
    with pytest.raises(ValueError, match=r"table huge: 3037000500 rows.*at most 3037000499"):
        placed(table, 2)
    assert placed(table, 2, spread=False).positions(torch.tensor([7])).tolist() == [7]


def test_unspread_ids_keep_their_order() -> None:
    ids = torch.tensor([[3, 1], [0, 6]], dtype=torch.int32)
    positions = placed(EmbeddingTable("t", 7, 1), 3, spread=False).positions(ids)
    assert positions.dtype == torch.int64
    assert torch.equal(positions, ids.long())


@pytest.mark.parametrize("sharding", ["row", "table", "column"])
def test_shards_cut_a_table_into_disjoint_parts(sharding: str) -> None:
    for world_size in WORLD_SIZES:
        for rows, dim in [(1, 1), (2, 3), (5, 4), (9, 8), (10, 7), (64, 16)]:
            table = EmbeddingTable("t", rows, dim, sharding=sharding)  # type: ignore[arg-type]
            counts = torch.zeros(rows, dim)
            for shard in placed(table, world_size).shards:
                counts_of_shard = cells(shard, counts)
                assert shard.holds_nothing == (counts_of_shard.numel() == 0)
                counts_of_shard += 1
            assert torch.equal(counts, torch.ones(rows, dim)), (world_size, rows, dim)


def test_rows_and_columns_are_cut_as_dtensor_cuts_them() -> None:
    """A state dict presents shards as parts of a DTensor, whose cut is torch.chunk's."""
    for world_size in WORLD_SIZES:
        for size in range(1, 20):
            expected = [len(chunk) for chunk in torch.arange(size).chunk(world_size)]
            expected += [0] * (world_size - len(expected))
            by_row = placed(EmbeddingTable("t", size, 1), world_size).shards
            by_column = placed(EmbeddingTable("t", 1, size, "column"), world_size).shards
            assert [len(shard.rows) for shard in by_row] == expected
            assert [len(shard.columns) for shard in by_column] == expected


def test_positions_do_not_depend_on_the_number_of_ranks() -> None:
    ids = torch.arange(1000)
    one = placed(EmbeddingTable("t", 1000, 1), 1)
    for world_size in WORLD_SIZES:
        many = placed(EmbeddingTable("t", 1000, 1), world_size)
        assert many.multiplier == one.multiplier
        assert torch.equal(many.positions(ids), one.positions(ids))


def test_whole_tables_go_to_the_rank_that_holds_least() -> None:
    sizes = {"a": 10, "b": 70, "c": 30, "d": 20, "e": 60}
    tables = tuple(EmbeddingTable(name, n, 1, "table") for name, n in sizes.items())
    holders = {
        placement.table.name: [bool(shard.rows) for shard in placement.shards].index(True)
        for placement in place(tables, 2, spread=True)
    }
    assert holders == {"b": 0, "e": 1, "c": 1, "d": 0, "a": 0}


def test_a_named_rank_holds_the_whole_table_and_counts_as_load() -> None:
    tables = (
        EmbeddingTable("fixed", 100, 1, "table", rank=2),
        EmbeddingTable("a", 10, 1, "table"),
        EmbeddingTable("b", 10, 1, "table"),
        EmbeddingTable("c", 10, 1, "table"),
    )
    rows = [
        [len(shard.rows) for shard in placement.shards]
        for placement in place(tables, 3, spread=True)
    ]
    assert rows[0] == [0, 0, 100]
    assert [sum(of_rank) for of_rank in zip(*rows[1:], strict=True)] == [20, 10, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "two words"}, "must be an identifier, got 'two words'"),
        ({"name": "type"}, "can't be 'type': torch.nn.Module uses it"),
        ({"num_embeddings": 0}, "table t: num_embeddings must be 1 or more, got 0"),
        ({"dim": -1}, "table t: dim must be 1 or more, got -1"),
        ({"sharding": "rows"}, "table t: sharding must be one of .* got 'rows'"),
        ({"pooling": "max"}, "table t: pooling must be None or one of .* got 'max'"),
        ({"rank": 0}, "table t: rank=0 is for sharding='table', not 'row'"),
        ({"std": float("nan")}, "table t: std must be 0 or more, got nan"),
        ({"features": "user"}, "table t: features must be a tuple of names, got 'user'"),
    ],
)
def test_an_impossible_table_says_what_is_wrong(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EmbeddingTable(**({"name": "t", "num_embeddings": 4, "dim": 2} | arguments))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ((), "at least one table"),
        (
            (EmbeddingTable("a", 1, 1), EmbeddingTable("a", 2, 1)),
            "two tables have the same name: a",
        ),
        (
            (EmbeddingTable("a", 1, 1, features=("x", "y")), EmbeddingTable("x", 2, 1)),
            "two features have the same name: x",
        ),
        (
            (EmbeddingTable("a", 1, 1, "table", rank=3),),
            "table a: rank 3 does not exist; there are 3",
        ),
    ],
)
def test_tables_that_can_not_stand_beside_each_other_say_why(
    tables: tuple[EmbeddingTable, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_tables(tables, 3)
