"""Checkpoints of sharded embeddings: saved by some number of ranks, loaded by another."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

import embedding_reference as reference
from freescale_pg.embedding import (
    SGD,
    Adam,
    EmbeddingTable,
    OverlapPipeline,
    RowOptimizer,
    RowwiseAdagrad,
    ShardedEmbedding,
    ShardedEmbeddingCollection,
)
from freescale_pg.embedding.table import Sharding
from harness.data import assert_same_bits, numbers
from harness.launch import Launcher

OPTIMIZERS: dict[str, Callable[[float], RowOptimizer]] = {
    "SGD": SGD,
    "RowwiseAdagrad": RowwiseAdagrad,
    "Adam": Adam,
}
SHARDINGS: tuple[Sharding, ...] = ("row", "column", "table")
# Not a multiple of any number of ranks; fewer rows, or columns, than ranks.
TABLES = [
    EmbeddingTable("items", 50, 6),
    EmbeddingTable("few", 3, 4),
    EmbeddingTable("wide", 20, 11, "column"),
    EmbeddingTable("narrow", 20, 2, "column"),
    EmbeddingTable("whole", 17, 3, "table"),
    EmbeddingTable("other", 16, 3, "table"),
]


def new_optimizer(name: str) -> RowOptimizer:
    return OPTIMIZERS[name](0.1)


def new_embedding(optimizer: str, seed: int = 0) -> ShardedEmbeddingCollection:
    return ShardedEmbeddingCollection(TABLES, optimizer=new_optimizer(optimizer), seed=seed)


def train(embedding: ShardedEmbeddingCollection, rank: int, steps: range) -> None:
    for step in steps:
        inputs = {}
        for table in TABLES:
            drawn = numbers((5 + rank,), torch.float64, key=(table.name, rank, step)).abs()
            inputs[table.name] = (drawn * 1000).long() % table.num_embeddings
        vectors = embedding(inputs)
        torch.stack([each.square().sum() for each in vectors.values()]).sum().backward()


def whole_state(embedding: ShardedEmbeddingCollection) -> dict[str, Tensor]:
    """All values and element states in the order of ids, and step counters; collective."""
    found = {}
    for name in embedding.tables:
        shard = embedding.tables[name]
        found[f"{name}.weight"] = reference.assemble(shard, shard.weight)
        found[f"{name}.steps"] = torch.tensor(shard.steps)
        for what, kept in shard.state.items():
            # An accumulator of each part of a row belongs to a number of ranks.
            if not (kept.dim() == 1 and shard.placement.table.sharding == "column"):
                found[f"{name}.{what}"] = reference.assemble(shard, kept)
    return found


def save(rank: int, size: int, directory: str, optimizer: str, high_level: bool) -> dict[str, Any]:
    embedding = new_embedding(optimizer)
    train(embedding, rank, range(3))
    saved = get_model_state_dict(embedding) if high_level else embedding.state_dict()
    dcp.save({"model": saved}, checkpoint_id=directory)
    state = whole_state(embedding)
    train(embedding, rank, range(3, 6))
    return {
        "saved": {name: value.numpy() for name, value in state.items()},
        "later": {name: v.numpy() for name, v in reference.snapshot(embedding).items()},
    }


def load(
    rank: int, size: int, directory: str, expected: list[dict[str, Any]], high_level: bool
) -> None:
    for optimizer in expected[0]:
        embedding = new_embedding(optimizer, seed=9)
        if high_level:
            loaded = {"model": get_model_state_dict(embedding)}
        else:
            loaded = {"model": embedding.state_dict()}
        dcp.load(loaded, checkpoint_id=f"{directory}/{optimizer}")
        if high_level:
            set_model_state_dict(embedding, loaded["model"])
        else:
            embedding.load_state_dict(loaded["model"])
        state = whole_state(embedding)
        for name, value in expected[0][optimizer]["saved"].items():
            assert_same_bits(state[name], torch.from_numpy(value), (optimizer, name))
        train(embedding, rank, range(3, 6))
        if len(expected) == size:
            for name, value in reference.snapshot(embedding).items():
                later = torch.from_numpy(expected[rank][optimizer]["later"][name])
                assert_same_bits(value, later, (optimizer, name))


def save_all(rank: int, size: int, directory: str, high_level: bool) -> dict[str, Any]:
    return {
        optimizer: save(rank, size, f"{directory}/{optimizer}", optimizer, high_level)
        for optimizer in OPTIMIZERS
    }


@pytest.mark.parametrize(
    ("saved_by", "loaded_by", "high_level"),
    [
        (1, [1, 3], False),
        (2, [1, 2, 4], False),
        (3, [2, 3], True),
        (4, [1, 4], False),
    ],
)
def test_any_number_of_ranks_loads_what_any_other_saved(
    launch: Launcher, tmp_path: Path, saved_by: int, loaded_by: list[int], high_level: bool
) -> None:
    expected = launch(save_all, saved_by, str(tmp_path), high_level, checks_footprint=False)
    for world_size in loaded_by:
        launch(load, world_size, str(tmp_path), expected, high_level, checks_footprint=False)


# --- Other layouts --------------------------------------------------------------------------------


def check_other_shardings(rank: int, size: int, directory: str) -> None:
    """What DCP saved of one sharding is loaded by the others."""
    for optimizer in ("SGD", "Adam"):
        made = {
            sharding: ShardedEmbedding(
                21, 7, sharding=sharding, optimizer=new_optimizer(optimizer), seed=seed
            )
            for seed, sharding in enumerate(SHARDINGS)
        }
        for source, saved in made.items():
            saved(torch.tensor([3, rank])).square().sum().backward()
            name = f"{directory}/{optimizer}-{source}"
            dcp.save(saved.state_dict(), checkpoint_id=name)
            values = reference.whole_tables(saved)["table"]
            for target in made:
                fresh = ShardedEmbedding(
                    21, 7, sharding=target, optimizer=new_optimizer(optimizer), seed=7
                )
                state = fresh.state_dict()
                dcp.load(state, checkpoint_id=name)
                fresh.load_state_dict(state)
                found = reference.whole_tables(fresh)["table"]
                assert_same_bits(found, values, (source, target))
                assert fresh.shards[0].steps == 1


def test_another_sharding_loads_the_same_values(launch: Launcher, tmp_path: Path) -> None:
    launch(check_other_shardings, 3, str(tmp_path), checks_footprint=False)


def check_wrong_layouts(rank: int, size: int) -> None:
    saved = ShardedEmbedding(20, 4, optimizer=SGD(0.1)).state_dict()
    multiplier = saved["tables.table.layout"][2].item()
    cases: list[tuple[dict[str, Any], str]] = [
        ({"spread": False}, rf"\(20, 4, {multiplier}\), this one \(20, 4, 1\)"),
        ({"dim": 8}, rf"\(20, 4, {multiplier}\), this one \(20, 8, {multiplier}\)"),
        ({"num_embeddings": 40}, rf"\(20, 4, {multiplier}\), this one \(40, 4, "),
    ]
    for arguments, message in cases:
        given: dict[str, Any] = {"num_embeddings": 20, "dim": 4, "optimizer": SGD(0.1), "seed": 3}
        other = ShardedEmbedding(**(given | arguments))
        before = reference.snapshot(other)
        with pytest.raises(RuntimeError, match="tables.table.layout: the saved table.*" + message):
            other.load_state_dict(saved)
        assert_same_bits(other.weight, before["table.weight"], "refused")
    adam = ShardedEmbedding(20, 4, optimizer=Adam(0.1))
    with pytest.raises(RuntimeError, match=r'Missing key.*"tables.table.adam_mean"'):
        adam.load_state_dict(saved)
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"tables.table.adam_mean"'):
        ShardedEmbedding(20, 4, optimizer=SGD(0.1)).load_state_dict(adam.state_dict())
    adam.load_state_dict(saved, strict=False)
    by_table = ShardedEmbedding(20, 4, optimizer=SGD(0.1), sharding="column")
    if size > 1:
        with pytest.raises(RuntimeError, match=r"tables.table.weight: this rank's part has shape"):
            by_table.load_state_dict(saved)


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_checkpoint_of_another_layout_is_refused(launch: Launcher, world_size: int) -> None:
    launch(check_wrong_layouts, world_size)


# --- Without DCP ----------------------------------------------------------------------------------


def check_plain_files(rank: int, size: int) -> None:
    for optimizer in OPTIMIZERS:
        embedding = new_embedding(optimizer)
        model = nn.Sequential(embedding, nn.Linear(2, 2))
        train(embedding, rank, range(3))
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        fresh = new_embedding(optimizer, seed=4)
        file.seek(0)
        nn.Sequential(fresh, nn.Linear(2, 2)).load_state_dict(torch.load(file))
        for each in (embedding, fresh):
            train(each, rank, range(3, 6))
        expected = reference.snapshot(embedding)
        for name, value in reference.snapshot(fresh).items():
            assert_same_bits(value, expected[name], (optimizer, name))


@pytest.mark.parametrize("world_size", [1, 3])
def test_each_rank_can_save_and_load_a_file_of_its_own(launch: Launcher, world_size: int) -> None:
    launch(check_plain_files, world_size)


def check_whole_tensors(rank: int, size: int) -> None:
    """Of a state dict of whole tensors each rank takes its part."""
    for sharding in SHARDINGS:
        source = ShardedEmbedding(21, 7, sharding=sharding, optimizer=Adam(0.1))
        source(torch.tensor([3, rank])).square().sum().backward()
        whole = {}
        for key, value in source.state_dict().items():
            whole[key] = value.full_tensor() if hasattr(value, "full_tensor") else value
        gathered: list[Any] = [None] * size
        dist.all_gather_object(gathered, whole)
        for part in gathered:
            whole |= part
        fresh = ShardedEmbedding(21, 7, sharding=sharding, optimizer=Adam(0.1), seed=3)
        fresh.load_state_dict(whole)
        expected = reference.snapshot(source)
        for name, value in reference.snapshot(fresh).items():
            assert_same_bits(value, expected[name], (sharding, name))


@pytest.mark.parametrize("world_size", [1, 3])
def test_whole_tensors_are_cut_on_loading(launch: Launcher, world_size: int) -> None:
    launch(check_whole_tensors, world_size)


def check_moves(rank: int, size: int) -> None:
    """Converting a module converts values and state, wherever they are kept."""
    embedding = new_embedding("Adam").double()
    train(embedding, rank, range(2))
    for name in embedding.tables:
        shard = embedding.tables[name]
        for tensor in (shard.weight, *shard.state.values()):
            assert tensor.dtype == torch.float64


def test_a_converted_module_goes_on_training(launch: Launcher) -> None:
    launch(check_moves, 2)


# --- Under overlap --------------------------------------------------------------------------------


def check_pending_gradients(rank: int, size: int, directory: str) -> None:
    batches = [torch.tensor([step, step + 1, 10 + rank]) for step in range(8)]
    plain = ShardedEmbedding(20, 3, optimizer=Adam(0.1))
    overlapped = ShardedEmbedding(20, 3, optimizer=Adam(0.1))
    with OverlapPipeline(
        lambda batch: overlapped(batch).square().sum(),
        None,
        batches,
        embedding=overlapped,
        ids_of=lambda batch: batch,
    ) as steps:
        for step, _ in enumerate(steps):
            plain(batches[step]).square().sum().backward()
            expected = reference.snapshot(plain)
            found = nn.ModuleDict({"embedding": overlapped}).state_dict()
            for name, value in expected.items():
                kept = found["embedding.tables." + name]
                local = kept.to_local() if hasattr(kept, "to_local") else kept
                assert_same_bits(local, value, (step, name))
            if step == 4:
                dcp.save(found, checkpoint_id=directory)
                saved = expected
    fresh = nn.ModuleDict({"embedding": ShardedEmbedding(20, 3, optimizer=Adam(0.1), seed=2)})
    state = fresh.state_dict()
    dcp.load(state, checkpoint_id=directory)
    fresh.load_state_dict(state)
    embedding = fresh["embedding"]
    assert isinstance(embedding, ShardedEmbedding)
    for name, value in reference.snapshot(embedding).items():
        assert_same_bits(value, saved[name], name)


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_state_dict_has_the_gradients_that_are_under_way(
    launch: Launcher, tmp_path: Path, world_size: int
) -> None:
    launch(check_pending_gradients, world_size, str(tmp_path), checks_footprint=False)
