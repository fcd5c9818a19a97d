"""Sharded embeddings against the whole table in one process."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import embedding_reference as reference
from freescale_pg._agreement import RanksDisagreeError
from freescale_pg.balance import Jagged
from freescale_pg.embedding import (
    SGD,
    Adam,
    EmbeddingTable,
    ShardedEmbedding,
    ShardedEmbeddingCollection,
    exclude_from_ddp,
)
from harness.data import assert_same_bits, bits, numbers
from harness.launch import Launcher

WORLD_SIZES = [1, 2, 3, 4]
LEARNING_RATE = 0.25
# Fewer rows, or columns, than ranks; a name that is one of a dict's methods.
TABLES = [
    EmbeddingTable("user", 23, 6),
    EmbeddingTable("items", 3, 5, features=("clicked", "bought")),
    EmbeddingTable("kind", 11, 3, "column"),
    EmbeddingTable("region", 5, 2, "table"),
    EmbeddingTable("city", 7, 4, "table", pooling="mean"),
    EmbeddingTable("tags", 29, 8, pooling="sum", features=("tag", "hashtag")),
    EmbeddingTable("words", 13, 5, "column", pooling="mean"),
]
BY_FEATURE = {feature: table for table in TABLES for feature in table.features}
# Shapes on rank r.
SHAPES: dict[str, Callable[[int], tuple[int, ...]]] = {
    "user": lambda rank: (2 + rank, 3),
    "clicked": lambda rank: (),
    "bought": lambda rank: (rank,),
    "kind": lambda rank: (0, 4) if rank == 1 else (2, 1, 4),
    "region": lambda rank: (3,),
}
BAGS: dict[str, Callable[[int], list[int]]] = {
    "city": lambda rank: [3, 0, 1 + rank],
    "tag": lambda rank: [0, 7, 2] if rank != 1 else [0, 0],
    "hashtag": lambda rank: [4, 1] if rank != 1 else [],
    "words": lambda rank: [0, 0, 0] if rank != 2 else [5, 0],
}
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8]


def draw(table: EmbeddingTable, shape: tuple[int, ...], key: tuple[object, ...]) -> Tensor:
    """Ids of a few rows, so that many occur several times."""
    raw = numbers(shape, torch.float64, key=key).mul(2).long().abs()
    return raw % table.num_embeddings


def inputs_of(rank: int, seed: int) -> dict[str, Tensor | Jagged]:
    inputs: dict[str, Tensor | Jagged] = {}
    for number, (feature, table) in enumerate(BY_FEATURE.items()):
        key = ("ids", feature, rank, seed)
        dtype = INTEGERS[(number + rank) % len(INTEGERS)]
        if feature in SHAPES:
            inputs[feature] = draw(table, SHAPES[feature](rank), key).to(dtype)
        else:
            lengths = torch.tensor(BAGS[feature](rank), dtype=dtype)
            inputs[feature] = Jagged(draw(table, (int(lengths.sum()),), key).to(dtype), lengths)
    return inputs


def weights_of(rank: int, inputs: dict[str, Tensor | Jagged], seed: int) -> dict[str, Tensor]:
    """Of some pooled features."""
    weights = {}
    for feature in ("tag", "words"):
        ids = inputs[feature]
        assert isinstance(ids, Jagged)
        drawn = numbers((len(ids.values),), torch.float64, key=("weights", feature, rank, seed))
        weights[feature] = drawn.requires_grad_()
    return weights


def loss_of(results: dict[str, Tensor], rank: int) -> Tensor:
    """Weighs every element differently."""
    losses = [
        (result * numbers(tuple(result.shape), result.dtype, key=("loss", feature, rank))).sum()
        for feature, result in results.items()
    ]
    return torch.stack(losses).sum()


def expected_step(
    tables: dict[str, Tensor], size: int, seed: int, scale: float
) -> tuple[list[dict[str, Tensor]], dict[str, Tensor], list[dict[str, Tensor]]]:
    """One step of all ranks in one process.

    Returns:
        By rank what is looked up; by table the gradients; by rank the gradients of weights.
    """
    leaves = {name: table.clone().requires_grad_() for name, table in tables.items()}
    results, weights_by_rank = [], []
    for rank in range(size):
        inputs = inputs_of(rank, seed)
        weights = weights_of(rank, inputs, seed)
        looked_up = {
            feature: reference.look_up(
                table, leaves[table.name], inputs[feature], weights.get(feature)
            )
            for feature, table in BY_FEATURE.items()
        }
        loss_of(looked_up, rank).backward()
        results.append({feature: result.detach() for feature, result in looked_up.items()})
        weights_by_rank.append(weights)
    gradients = {}
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        gradients[name] = leaf.grad * scale
    weight_gradients = []
    for weights in weights_by_rank:
        of_rank = {}
        for feature, each in weights.items():
            assert each.grad is not None
            of_rank[feature] = each.grad
        weight_gradients.append(of_rank)
    return results, gradients, weight_gradients


def check_steps(rank: int, size: int, settings: dict[str, Any]) -> None:
    sparse = settings.pop("sparse", False)
    embedding = ShardedEmbeddingCollection(
        TABLES,
        optimizer=None if sparse else SGD(LEARNING_RATE),
        dtype=torch.float64,
        **settings,
    )
    scale = 1.0 if settings.get("gradients") == "sum" else 1 / size
    for seed in range(2):
        before = reference.whole_tables(embedding)
        results, gradients, weight_gradients = expected_step(before, size, seed, scale)
        inputs = inputs_of(rank, seed)
        weights = weights_of(rank, inputs, seed)
        got = embedding(inputs, weights)
        assert list(got) == list(BY_FEATURE)
        for feature, result in got.items():
            what = f"{settings} {feature}"
            torch.testing.assert_close(result.detach(), results[rank][feature], msg=what)
        loss_of(got, rank).backward()
        for feature, expected in weight_gradients[rank].items():
            torch.testing.assert_close(weights[feature].grad, expected, msg=feature)
        for name, values in before.items():
            shard = embedding.tables[name]
            if sparse:
                assert shard.weight.grad is not None and shard.weight.grad.is_sparse
                found = reference.assemble(shard, shard.weight.grad.to_dense())
                torch.testing.assert_close(found, gradients[name], msg=f"{settings} {name}")
                shard.weight.grad = None
            else:
                after = reference.assemble(shard, shard.weight)
                expected = values - LEARNING_RATE * gradients[name]
                torch.testing.assert_close(after, expected, msg=f"{settings} {name}")


def check_all_settings(rank: int, size: int) -> None:
    for settings in (
        {},
        {"dedup": False, "spread": False},
        {"gradients": "sum"},
        {"sparse": True},
        {"sparse": True, "gradients": "sum", "dedup": False},
    ):
        check_steps(rank, size, dict(settings))


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_vectors_and_gradients_are_those_of_the_whole_tables(
    launch: Launcher, world_size: int
) -> None:
    launch(check_all_settings, world_size)


def test_any_backend_carries_the_same(launch: Launcher) -> None:
    launch(check_all_settings, 2, backend="gloo", checks_footprint=False)


def check_subgroup(rank: int, size: int) -> None:
    members = [0, 2]
    group = dist.new_group(members)
    if rank not in members:
        with pytest.raises(ValueError, match="with this rank in it"):
            ShardedEmbedding(5, 2, group=group)
        return
    check_steps(dist.get_rank(group), len(members), {"group": group})


def test_a_subgroup_shares_tables_of_its_own(launch: Launcher) -> None:
    launch(check_subgroup, 3)


# --- nn.Embedding and nn.EmbeddingBag -------------------------------------------------------------


def check_single_tables(rank: int, size: int) -> None:
    ids = draw(TABLES[0], (4, 5), ("ids", rank))
    for sharding in ("row", "column", "table"):
        plain = ShardedEmbedding(23, 6, sharding=sharding, dtype=torch.float64)
        whole = reference.whole_tables(plain)["table"]
        assert_same_bits(plain(ids), nn.Embedding.from_pretrained(whole)(ids), sharding)
        for pooling in ("sum", "mean"):
            bags = ShardedEmbedding(
                23, 6, sharding=sharding, pooling=pooling, dtype=torch.float64, seed=1
            )
            whole = reference.whole_tables(bags)["table"]
            lengths = torch.tensor([7, 0, 13])
            theirs = nn.EmbeddingBag.from_pretrained(whole, mode=pooling)
            expected = theirs(ids.view(-1), lengths.cumsum(0) - lengths)
            torch.testing.assert_close(bags(ids.view(-1), lengths), expected)


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_single_table_is_looked_up_like_those_of_torch(launch: Launcher, world_size: int) -> None:
    launch(check_single_tables, world_size)


def check_nothing_anywhere(rank: int, size: int) -> None:
    for optimizer in (None, SGD(LEARNING_RATE)):
        for pooling in (None, "sum", "mean"):
            embedding = ShardedEmbedding(9, 4, pooling=pooling, optimizer=optimizer)
            before = reference.snapshot(embedding)
            ids = torch.zeros(0, dtype=torch.int64)
            weights = None
            if pooling is None:
                result = embedding(ids)
                assert result.shape == (0, 4)
            else:
                weights = torch.zeros(0, requires_grad=True)
                result = embedding(ids, torch.zeros(3, dtype=torch.int64), weights)
                assert_same_bits(result, torch.zeros(3, 4), "empty bags")
            result.sum().backward()
            # DDP waits for all gradients, if the weights come out of a model.
            assert weights is None or weights.grad is not None
            assert_same_bits(embedding.weight.detach(), before["table.weight"], pooling)


@pytest.mark.parametrize("world_size", [1, 2])
def test_batches_without_ids_on_any_rank_go_through(launch: Launcher, world_size: int) -> None:
    launch(check_nothing_anywhere, world_size)


def check_no_grad(rank: int, size: int) -> None:
    embedding = ShardedEmbedding(9, 4, optimizer=SGD(1.0))
    whole = reference.whole_tables(embedding)["table"]
    ids = torch.tensor([rank, 8, 3])
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            result = embedding(ids)
        assert not result.requires_grad
        assert torch.equal(result, whole[ids])
    assert embedding(ids).requires_grad


def test_evaluation_needs_no_graph(launch: Launcher) -> None:
    launch(check_no_grad, 2)


# --- The number of ranks --------------------------------------------------------------------------


def find_values(rank: int, size: int) -> dict[str, bytes]:
    """Bits of initial values, and of what the inputs of a fixed rank look up."""
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        embedding = ShardedEmbeddingCollection(
            [*TABLES, EmbeddingTable("long", 9000, 3)], seed=5, dtype=dtype
        )
        inputs: dict[str, Tensor | Jagged] = {**inputs_of(2, 0)}
        inputs["long"] = torch.tensor([0, 4095, 4096, 8999])
        tables = reference.whole_tables(embedding)
        if dtype == torch.float32:
            for values in tables.values():
                # Some of 27,000 floats coincide; whole blocks of rows must not.
                assert len(values.unique()) > 0.99 * values.numel()
            assert 0.97 < tables["long"].std().item() < 1.03
        for what, tensors in (("table", tables), ("vectors", embedding(inputs))):
            for name, value in tensors.items():
                raw = bits(value.detach().contiguous()).numpy().tobytes()
                found[f"{what} {name} {dtype}"] = raw
    return found


def test_values_and_vectors_do_not_depend_on_the_number_of_ranks(launch: Launcher) -> None:
    alone = launch(find_values, 1)[0]
    for world_size in (2, 3, 4):
        for found in launch(find_values, world_size):
            differing = [what for what, raw in alone.items() if found[what] != raw]
            assert not differing, world_size


# --- Inside of models -----------------------------------------------------------------------------


class Recommender(nn.Module):
    """An embedding, and something dense on top."""

    def __init__(self, embedding: nn.Module, dim: int) -> None:
        super().__init__()
        self.embedding = embedding
        torch.manual_seed(3)
        self.dense = nn.Linear(dim, 2).double()

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.dense(self.embedding(ids))
        return F.softplus(hidden).sum() / 10


def train_reference(size: int, whole: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Trains on the batches of all ranks in one process, with the mean of their losses."""
    model = Recommender(nn.Embedding.from_pretrained(whole, freeze=False, sparse=True), 4)
    rows = torch.optim.SparseAdam(model.embedding.parameters(), lr=0.1)
    dense = torch.optim.SGD(model.dense.parameters(), lr=0.1)
    for step in range(steps):
        rows.zero_grad()
        dense.zero_grad()
        losses = [model(draw(TABLES[0], (7,), ("train", rank, step))) for rank in range(size)]
        torch.stack(losses).mean().backward()
        rows.step()
        dense.step()
    values = model.embedding.weight
    assert isinstance(values, Tensor)
    return values.detach(), model.dense.weight.detach()


def check_under_ddp(rank: int, size: int, own_optimizer: bool) -> None:
    embedding = ShardedEmbedding(
        23, 4, optimizer=Adam(0.1) if own_optimizer else None, dtype=torch.float64
    )
    expected, expected_dense = train_reference(size, reference.whole_tables(embedding)["table"], 4)
    model = Recommender(embedding, 4)
    exclude_from_ddp(model)
    wrapped = DistributedDataParallel(model)
    dense = torch.optim.SGD(model.dense.parameters(), lr=0.1)
    parameters = [*embedding.parameters()]
    assert len(parameters) == (0 if own_optimizer else 1)
    rows = torch.optim.SparseAdam(parameters, lr=0.1) if parameters else None
    for step in range(4):
        dense.zero_grad()
        if rows is not None:
            rows.zero_grad()
        wrapped(draw(TABLES[0], (7,), ("train", rank, step))).backward()
        dense.step()
        if rows is not None:
            rows.step()
    torch.testing.assert_close(reference.whole_tables(embedding)["table"], expected)
    torch.testing.assert_close(model.dense.weight.detach(), expected_dense)


@pytest.mark.parametrize("own_optimizer", [False, True])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_training_under_ddp_is_that_of_one_process(
    launch: Launcher, world_size: int, own_optimizer: bool
) -> None:
    launch(check_under_ddp, world_size, own_optimizer)


def check_compiled(rank: int, size: int) -> None:
    ids = draw(TABLES[0], (7,), ("train", rank, 0))
    found = []
    for compiled in (False, True):
        model = Recommender(ShardedEmbedding(23, 4, optimizer=SGD(0.1), dtype=torch.float64), 4)
        run = torch.compile(model, backend="aot_eager") if compiled else model
        loss = run(ids)
        loss.backward()
        after = reference.whole_tables(model.embedding)["table"]  # type: ignore[arg-type]
        assert model.dense.weight.grad is not None
        found.append((loss.detach(), after, model.dense.weight.grad))
    for plain, other in zip(*found, strict=True):
        torch.testing.assert_close(other, plain)


def test_a_compiled_model_looks_up_the_same(launch: Launcher) -> None:
    launch(check_compiled, 2)


# --- Mistakes -------------------------------------------------------------------------------------

BAD: list[tuple[Callable[[dict[str, Any], dict[str, Any]], object], str]] = [
    (
        lambda ids, weights: ids["user"].view(-1)[1:2].fill_(23),
        "ValueError: feature user: id 23 is not in table user, which has 23 rows",
    ),
    (
        lambda ids, weights: ids.update(bought=torch.tensor([2, -4, 3])),
        "ValueError: feature bought: id -4 is not in table items, which has 3 rows",
    ),
    (
        lambda ids, weights: ids.update(kind=torch.tensor([1.0])),
        "TypeError: feature kind: ids must be integers, got torch.float32",
    ),
    (
        lambda ids, weights: ids.update(kind=[1, 2]),
        "TypeError: feature kind: ids must be a tensor or Jagged, got list",
    ),
    (
        lambda ids, weights: ids.update(city=Jagged(torch.arange(4), torch.tensor([1, 2]))),
        "ValueError: feature city: the lengths add up to 3, and there are 4 ids",
    ),
    (
        lambda ids, weights: ids.update(city=Jagged(torch.arange(4), torch.tensor([5, -1]))),
        "ValueError: feature city: a length is -1",
    ),
    (
        lambda ids, weights: ids.update(city=Jagged(torch.arange(4), torch.tensor([4.0]))),
        "ValueError: feature city: lengths must be integers of one dimension",
    ),
    (
        lambda ids, weights: ids.update(tag=torch.arange(4)),
        "ValueError: feature tag: table tags is pooled and needs lengths",
    ),
    (
        lambda ids, weights: weights.update(tag=torch.ones(99)),
        r"ValueError: feature tag: weights have shape \[99\], and ids",
    ),
    (
        lambda ids, weights: weights.update(kind=torch.ones(1)),
        "ValueError: feature kind: weights are for pooled tables, and kind is none",
    ),
    (
        lambda ids, weights: ids.pop("region"),
        r"ValueError: there must be ids for the features \['bought', .*got \['bought', .*",
    ),
    (
        lambda ids, weights: ids.update(price=torch.arange(4)),
        r"ValueError: there must be ids for the features .*; unknown: \['price'\]",
    ),
    (
        lambda ids, weights: weights.update(price=torch.ones(4)),
        r"ValueError: there must be ids for the features .*; unknown: \['price'\]",
    ),
]


def check_bad_inputs(rank: int, size: int) -> None:
    embedding = ShardedEmbeddingCollection(TABLES, optimizer=SGD(0.5), dtype=torch.float64)
    before = reference.snapshot(embedding)
    for number, (spoil, message) in enumerate(BAD):
        guilty = number % size
        inputs: dict[str, Any] = {**inputs_of(rank, 0)}
        weights: dict[str, Any] = {}
        if rank == guilty:
            spoil(inputs, weights)
        with pytest.raises(RanksDisagreeError, match=f"^rank {guilty}: {message}"):
            embedding(inputs, weights)
    for name, kept in reference.snapshot(embedding).items():
        assert_same_bits(kept, before[name], name)
    with pytest.raises(RanksDisagreeError) as caught:
        embedding({})
    assert [int(number) for number in re.findall(r"rank (\d): ValueError", str(caught.value))] == [
        *range(size)
    ]
    check_one_more_step(embedding, rank, size)


def check_one_more_step(embedding: ShardedEmbeddingCollection, rank: int, size: int) -> None:
    before = reference.whole_tables(embedding)
    results, gradients, _ = expected_step(before, size, 1, 1 / size)
    inputs = inputs_of(rank, 1)
    got = embedding(inputs, weights_of(rank, inputs, 1))
    for feature, result in got.items():
        torch.testing.assert_close(result.detach(), results[rank][feature], msg=feature)
    loss_of(got, rank).backward()
    for name, after in reference.whole_tables(embedding).items():
        torch.testing.assert_close(after, before[name] - 0.5 * gradients[name], msg=name)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_an_impossible_input_of_one_rank_is_an_error_on_all_and_no_more(
    launch: Launcher, world_size: int
) -> None:
    launch(check_bad_inputs, world_size)


class PlainOptimizer:
    """One of a user's own, that says nothing of itself."""

    def __init__(self, lr: float) -> None:
        self.lr = lr

    def state(self) -> dict[str, Any]:
        return {}

    def update(self, rows: Tensor, gradients: Tensor, state: Any, *, lr: float, step: int) -> None:
        rows.sub_(gradients * lr)


def check_differing_settings(rank: int, size: int) -> None:
    odd = rank == size - 1
    table = EmbeddingTable("t", 4, 2)
    others, all_of_them = ", ".join(map(str, range(size - 1))), f"rank{'s' if size > 2 else ''}"
    cases: list[tuple[dict[str, Any], str]] = [
        ({"tables": [EmbeddingTable("t", 5 if odd else 4, 2)]}, r"table t: .*num_embeddings=4"),
        (
            {"tables": [table, *([EmbeddingTable("u", 5, 2)] if odd else [])]},
            "order of the tables: .*table u: absent",
        ),
        ({"optimizer": SGD(0.1 + odd)}, r"optimizer: SGD\(lr=0.1\) on "),
        ({"optimizer": PlainOptimizer(0.1 + odd)}, r"optimizer: PlainOptimizer\(lr=0.1\) on "),
        ({"gradients": "sum" if odd else "mean"}, f"gradients: mean on {all_of_them} {others}"),
        ({"dedup": odd}, "dedup: False on "),
        ({"spread": odd}, "spread: False on "),
        ({"seed": 3 + odd}, "seed: 3 on "),
        ({"dtype": torch.float64 if odd else torch.float32}, "dtype: torch.float32 on "),
    ]
    for arguments, message in cases:
        with pytest.raises(RanksDisagreeError, match="the ranks' embeddings differ in " + message):
            ShardedEmbeddingCollection(**({"tables": [table]} | arguments))
    for spoilt, message in (([], "at least one table"), ([table, table], "two tables have")):
        with pytest.raises(RanksDisagreeError, match=f"^rank {size - 1}: .*{message}"):
            ShardedEmbeddingCollection(spoilt if odd else [table])
    embedding = ShardedEmbedding(4, 2, optimizer=PlainOptimizer(0.5), gradients="sum")
    before = reference.whole_tables(embedding)["table"]
    embedding(torch.tensor([1])).sum().backward()
    after = reference.whole_tables(embedding)["table"]
    before[1] -= 0.5 * size
    torch.testing.assert_close(after, before)


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_with_different_tables_or_settings_all_hear_of_it(
    launch: Launcher, world_size: int
) -> None:
    launch(check_differing_settings, world_size)


def check_timeouts(rank: int, size: int) -> None:
    exchange = ShardedEmbedding(4, 2).exchange
    for group in (exchange._on_path, exchange._ids_ahead, exchange._vectors_ahead):
        timeout = group._get_backend(torch.device("cpu")).options._timeout
        assert timeout.total_seconds() == 47


@pytest.mark.parametrize("carrier", ["freescale", "gloo"])
def test_messages_have_the_timeout_of_the_group(launch: Launcher, carrier: str) -> None:
    launch(check_timeouts, 2, backend=carrier, timeout=47.0, checks_footprint=False)


def test_what_is_no_optimizer_of_rows_is_refused(launch: Launcher) -> None:
    launch(check_wrong_optimizer, 1)


def check_wrong_optimizer(rank: int, size: int) -> None:
    with pytest.raises(TypeError, match=r"must be one of freescale_pg.embedding or None, got str"):
        ShardedEmbedding(4, 2, optimizer="SGD")  # type: ignore[arg-type]


def test_without_a_process_group_it_says_so() -> None:
    with pytest.raises(ValueError, match="there is no process group"):
        ShardedEmbedding(4, 2)
