"""Overlapped training is the plain one, to the bit, and only shared rows are waited for."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import freescale_pg
from embedding_training import (
    DIM,
    OPTIMIZERS,
    Case,
    Model,
    Training,
    assert_same,
    differences,
    new_training,
)
from freescale_pg.balance import Jagged
from freescale_pg.embedding import (
    EmbeddingOverlap,
    EmbeddingTable,
    ShardedEmbedding,
    ShardedEmbeddingCollection,
)
from freescale_pg.embedding.request import Demand
from harness.data import numbers
from harness.launch import Launcher

# Percent of the ids.
SHARED = [0, 10, 50, 100]


def check_cases(rank: int, size: int, cases: list[Case]) -> None:
    for case in cases:
        batches = case.batches(rank)
        plain = new_training(case).plainly(batches)
        assert_same(new_training(case).overlapped(batches), plain, case)
        assert_same(new_training(case).overlapped(batches, overlap=False), plain, (case, "not"))


# --- The same bits --------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", SHARED)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_overlap_gives_the_bits_of_the_plain_loop(
    launch: Launcher, optimizer: str, shared: int
) -> None:
    launch(check_cases, 2, [Case(optimizer, shared)])


@pytest.mark.parametrize(
    ("world_size", "case"),
    [
        (1, Case("Adam", 50)),
        (1, Case("SGD", 0, steps=60, sharding="column")),
        (2, Case("RowwiseAdagrad", 50, steps=60, sharding="column", dedup=False)),
        (2, Case("Adam", 10, steps=60, sharding="table")),
        (3, Case("RowwiseAdagrad", 10, steps=60)),
        (3, Case("SGD", 100, steps=60, dedup=False)),
        (4, Case("Adam", 50, steps=60)),
    ],
)
def test_overlap_gives_the_same_bits_on_any_number_of_ranks(
    launch: Launcher, world_size: int, case: Case
) -> None:
    launch(check_cases, world_size, [case])


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_loaders_of_few_batches_or_none_are_trained_on(launch: Launcher, world_size: int) -> None:
    launch(check_cases, world_size, [Case("Adam", steps=steps) for steps in range(4)])


TABLES = [
    EmbeddingTable("items", 60, 4, features=("clicked", "bought")),
    EmbeddingTable("kind", 20, 3, "column"),
    EmbeddingTable("city", 9, 2, "table"),
    EmbeddingTable("tags", 50, 6, pooling="sum"),
    EmbeddingTable("words", 40, 5, "column", pooling="mean"),
]


def mixed_batch(rank: int, step: int) -> dict[str, Any]:
    batch: dict[str, Any] = {}
    for table in TABLES:
        for feature in table.features:
            count = (rank * 3 + step * 5 + len(batch)) % 9
            drawn = numbers((count,), torch.float64, key=(feature, rank, step)).abs()
            ids = (drawn * 1000).long() % table.num_embeddings
            if table.pooling is None:
                batch[feature] = ids
            else:
                cut = torch.tensor([count // 2, 0, count - count // 2])
                batch[feature] = Jagged(ids, cut)
    return batch


class MixedModel(Model):
    """Looks many tables up, in as many calls as a batch has dicts."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__(embedding, dim=1)

    def vectors(self, batch: Any) -> Tensor:
        sums = [
            vectors.sum()
            for inputs in (batch if isinstance(batch, list) else [batch])
            for vectors in self.embedding(inputs, self.weights(inputs)).values()
        ]
        return torch.stack(sums)[:, None]

    def weights(self, inputs: dict[str, Any]) -> dict[str, Tensor]:
        values = inputs["tags"].values
        return {"tags": torch.arange(len(values)) / 4 + 1}


def new_mixed_training(optimizer: str) -> Training:
    tables = ShardedEmbeddingCollection(TABLES, optimizer=OPTIMIZERS[optimizer]())
    return Training(MixedModel(tables))


def check_collection(rank: int, size: int, optimizer: str) -> None:
    batches = [mixed_batch(rank, step) for step in range(40)]
    plain = new_mixed_training(optimizer).plainly(batches)
    assert_same(new_mixed_training(optimizer).overlapped(batches), plain, "overlapped")
    assert_same(new_mixed_training(optimizer).overlapped(batches, overlap=False), plain, "not")


@pytest.mark.parametrize(
    ("world_size", "optimizer"), [(1, "SGD"), (2, "RowwiseAdagrad"), (3, "Adam")]
)
def test_overlap_gives_the_same_bits_for_a_collection(
    launch: Launcher, world_size: int, optimizer: str
) -> None:
    launch(check_collection, world_size, optimizer)


def check_several_lookups(rank: int, size: int) -> None:
    batches = [
        [mixed_batch(rank, 3 * step + part) for part in range(step % 4)] for step in range(30)
    ]
    # A step without a look-up still has a loss.
    for number, batch in enumerate(batches):
        batches[number] = batch or [mixed_batch(rank, number)]
    together = new_mixed_training("Adam").overlapped(batches, overlap=False)
    assert_same(new_mixed_training("Adam").overlapped(batches), together, "several")
    fetched_each = new_mixed_training("Adam").plainly(batches)
    # One update of the sum instead of one for each look-up.
    assert "losses" in differences(fetched_each, together)


def test_several_look_ups_in_a_step_give_the_same_bits(launch: Launcher) -> None:
    launch(check_several_lookups, 2)


def check_under_ddp(rank: int, size: int) -> None:
    case = Case("Adam", 50, steps=60)
    results = []
    for mode in ("plain", "overlapped", "not"):
        training = new_training(case)
        training.model.dense = DistributedDataParallel(training.model.dense)
        batches = case.batches(rank)
        if mode == "plain":
            training.plainly(batches)
        else:
            training.overlapped(batches, overlap=mode == "overlapped")
        results.append(training)
    assert_same(results[1], results[0], "overlapped")
    assert_same(results[2], results[0], "not overlapped")


@pytest.mark.parametrize("world_size", [2, 3])
def test_overlap_gives_the_same_bits_beside_ddp(launch: Launcher, world_size: int) -> None:
    launch(check_under_ddp, world_size)


# --- What would break it --------------------------------------------------------------------------


def none_shared_at_every_second_call(first: int) -> Callable[..., list[Tensor]]:
    """Of the two comparisons of a step, the first decides on gradients, the second on look-ups."""
    right, calls = Demand.shared_with, [first]

    def wrong(self: Demand, other: Demand) -> list[Tensor]:
        calls[0] += 1
        found = right(self, other)
        return [torch.zeros_like(each) for each in found] if calls[0] % 2 else found

    return wrong


def break_lookup(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Demand, "shared_with", none_shared_at_every_second_call(1))


def break_gradient(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Demand, "shared_with", none_shared_at_every_second_call(0))


def delay_late_gradients(patch: pytest.MonkeyPatch) -> None:
    take, settle = EmbeddingOverlap._take_late, EmbeddingOverlap.settle
    held: list[Any] = [None]

    def take_the_one_before(self: EmbeddingOverlap) -> Any:
        before, held[0] = held[0], take(self)
        return before

    def settle_both(self: EmbeddingOverlap) -> None:
        self._apply(self._take_late())
        settle(self)

    patch.setattr(EmbeddingOverlap, "_take_late", take_the_one_before)
    patch.setattr(EmbeddingOverlap, "settle", settle_both)


def look_up_before_late_gradients(patch: pytest.MonkeyPatch) -> None:
    def fetch_next(self: EmbeddingOverlap) -> None:
        if self._boundary is not None:
            self._send_early(self._queue[0], self._boundary)
        self._apply(self._take_late())

    patch.setattr(EmbeddingOverlap, "_fetch_next", fetch_next)


def change_applied(patch: pytest.MonkeyPatch, change: Callable[[Any, Any], None]) -> None:
    right = EmbeddingOverlap._apply

    def wrong(self: EmbeddingOverlap, gradients: Any) -> None:
        if gradients is not None:
            change(self, gradients)
        right(self, gradients)

    patch.setattr(EmbeddingOverlap, "_apply", wrong)


def take_present_rate(patch: pytest.MonkeyPatch) -> None:
    change_applied(patch, lambda self, each: setattr(each, "lr", self._embedding.optimizer.lr))


def take_next_step(patch: pytest.MonkeyPatch) -> None:
    change_applied(
        patch, lambda self, each: setattr(each, "steps", [step + 1 for step in each.steps])
    )


def apply_in_another_order(patch: pytest.MonkeyPatch) -> None:
    right = Demand.add_up

    def wrong(self: Demand, wire: Tensor, *arguments: Any) -> list[tuple[Tensor, Tensor]]:
        return [(rows, total.flip(0)) for rows, total in right(self, wire, *arguments)]

    patch.setattr(Demand, "add_up", wrong)


BREAKS = [
    break_lookup,
    break_gradient,
    delay_late_gradients,
    look_up_before_late_gradients,
    take_present_rate,
    take_next_step,
    apply_in_another_order,
]


def check_breaks(rank: int, size: int) -> None:
    case = Case("Adam", 10, steps=30)
    batches = case.batches(rank)
    plain = new_training(case).plainly(batches)
    for break_it in BREAKS:
        with pytest.MonkeyPatch.context() as patch:
            break_it(patch)
            broken = new_training(case).overlapped(batches)
        found = differences(broken, plain)
        assert {"losses", "table.weight"} <= {*found}, (break_it.__name__, found)
    assert_same(new_training(case).overlapped(batches), plain, "unbroken")


@pytest.mark.parametrize("world_size", [1, 2])
def test_rows_or_gradients_at_the_wrong_time_show_in_the_bits(
    launch: Launcher, world_size: int
) -> None:
    launch(check_breaks, world_size)


# --- What travels, and how urgently ---------------------------------------------------------------


def expected_traffic(case: Case, rank: int, size: int, embedding: ShardedEmbedding) -> Counter[str]:
    """Bytes that a rank sends, by priority, when only shared rows are urgent."""
    placement = embedding.placements[0]
    share = len(placement.shards[0].rows)

    def rows_asked(of_rank: int, step: int) -> set[int]:
        return {*placement.positions(case.batch(of_rank, step)).tolist()}

    def holder(row: int) -> int:
        return row // share

    asked = [[rows_asked(each, step) for each in range(size)] for step in range(case.steps)]
    needed = [set().union(*of_ranks) for of_ranks in asked]
    others = [each for each in range(size) if each != rank]
    sent: Counter[str] = Counter()
    header, vector = 2 * 8, DIM * 4
    # The first step waits for its ids. After the last one comes the end.
    sent["URGENT"] += len(others) * header
    sent["LOW"] += case.steps * len(others) * header
    for step in range(case.steps):
        before = needed[step - 1] if step else needed[step]
        after = needed[step + 1] if step + 1 < case.steps else needed[step]
        for other in others:
            for row in asked[step][other]:
                if holder(row) == rank:
                    sent["URGENT" if row in before else "LOW"] += vector
                    # A byte for the rank that asks: is the row awaited, and was it fresh?
                    sent["HIGH"] += (step + 1 < case.steps) + (step > 0)
            for row in asked[step][rank]:
                if holder(row) == other:
                    sent["LOW" if step else "URGENT"] += 4
                    sent["HIGH" if row in after else "BACKGROUND"] += vector
    return sent


def traffic_of(case: Case, rank: int) -> tuple[Counter[str], Training]:
    training = new_training(case)
    freescale_pg.reset_stats()
    training.overlapped(case.batches(rank))
    sent: Counter[str] = Counter()
    for op in freescale_pg.stats().ops:
        assert op.op == "all_to_all_single", op
        sent[op.priority] += op.bytes_sent
    return sent, training


def check_traffic(rank: int, size: int) -> None:
    for shared in SHARED:
        case = Case("SGD", shared, steps=25)
        sent, training = traffic_of(case, rank)
        expected = expected_traffic(case, rank, size, training.embedding)
        assert sent == expected, shared
    right = Demand.shared_with
    case = Case("SGD", 10, steps=25)
    unbroken = new_training(case).overlapped(case.batches(rank))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Demand,
            "shared_with",
            lambda self, other: [torch.ones_like(each) for each in right(self, other)],
        )
        sent, training = traffic_of(case, rank)
    # No bit tells that everything was waited for.
    assert_same(training, unbroken, "all shared")
    expected = expected_traffic(case, rank, size, training.embedding)
    assert sent["URGENT"] > expected["URGENT"]
    assert sent["HIGH"] > expected["HIGH"]
    assert sent["BACKGROUND"] == 0 < expected["BACKGROUND"]


@pytest.mark.freescale_only
@pytest.mark.parametrize("world_size", [2, 3])
def test_only_rows_that_batches_share_travel_urgently(launch: Launcher, world_size: int) -> None:
    launch(check_traffic, world_size)
