"""Overlapped training is the plain one, to the bit, and only shared rows are waited for."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import embedding_reference as reference
import freescale_pg
from freescale_pg._agreement import RanksDisagreeError
from freescale_pg.balance import Jagged
from freescale_pg.embedding import (
    SGD,
    Adam,
    EmbeddingOverlap,
    EmbeddingTable,
    OverlapPipeline,
    RowOptimizer,
    RowwiseAdagrad,
    ShardedEmbedding,
    ShardedEmbeddingCollection,
)
from freescale_pg.embedding.request import Demand, Request
from harness.data import bits, numbers
from harness.launch import Launcher

ROWS, DIM = 300, 5
# Rows that any batch may need; of the others, even batches need some and odd ones the rest.
COMMON = 40
OPTIMIZERS: dict[str, Callable[[], RowOptimizer]] = {
    "SGD": lambda: SGD(0.5),
    "RowwiseAdagrad": lambda: RowwiseAdagrad(0.3),
    "Adam": lambda: Adam(0.05),
}
SHARED = [0, 10, 50, 100]


@dataclass(frozen=True)
class Case:
    """One training.

    Attributes:
        optimizer: Name of it.
        shared: Percent of the ids that are drawn from the common rows.
        steps: Batches.
        skipped: Batches that the plain loop leaves out.
        settings: Of the embedding.
    """

    optimizer: str = "SGD"
    shared: int = 50
    steps: int = 200
    skipped: tuple[int, ...] = ()
    sharding: str = "row"
    dedup: bool = True

    def embedding(self) -> ShardedEmbedding:
        return ShardedEmbedding(
            ROWS,
            DIM,
            sharding=self.sharding,  # type: ignore[arg-type]
            dedup=self.dedup,
            optimizer=OPTIMIZERS[self.optimizer](),
        )

    def batch(self, rank: int, step: int) -> Tensor:
        """Of any size; none on any rank at times, and the one before again at others."""
        if step % 10 == 7:
            step -= 1
        count = 0 if step % 17 == 11 else (rank * 7 + step * 5) % 23
        drawn = numbers((3, count), torch.float64, key=("ids", rank, step, self.shared)).abs()
        common = (drawn[0] * 1000).long() % 100 < self.shared
        others = (drawn[1] * 1000).long() % ((ROWS - COMMON) // 2) * 2 + step % 2 + COMMON
        return torch.where(common, (drawn[2] * 1000).long() % COMMON, others)

    def batches(self, rank: int) -> list[Tensor]:
        return [self.batch(rank, step) for step in range(self.steps)]


class Model(nn.Module):
    """Something dense on an embedding; can be told to fail."""

    def __init__(self, embedding: nn.Module, dim: int = DIM) -> None:
        super().__init__()
        self.embedding = embedding
        torch.manual_seed(1)
        self.dense: nn.Module = nn.Linear(dim, 3)

    def forward(self, batch: Any) -> Tensor:
        return F.softplus(self.dense(self.vectors(batch))).sum() / 8

    def vectors(self, batch: Any) -> Tensor:
        vectors: Tensor = self.embedding(batch)
        return vectors


class Training:
    """A model, its optimizers and what came out so far."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.embedding: Any = model.embedding
        self.dense = torch.optim.Adam(model.dense.parameters(), lr=0.01)
        self.losses: list[Tensor] = []
        self.base = self.embedding.optimizer.lr

    def record(self, loss: Tensor) -> None:
        """Keeps a loss, and changes the learning rates for the next step."""
        self.losses.append(loss)
        factor = 1 + math.sin(len(self.losses)) / 2
        self.embedding.optimizer.lr = self.base * factor
        self.dense.param_groups[0]["lr"] = 0.01 * factor

    def plainly(self, batches: Iterable[Any], skipped: Iterable[int] = ()) -> "Training":
        for step, batch in enumerate(batches):
            if step not in skipped:
                loss = self.model(batch)
                loss.backward()
                self.dense.step()
                self.dense.zero_grad()
                self.record(loss.detach())
        return self

    def pipeline(
        self,
        batches: Iterable[Any],
        *,
        overlap: bool = True,
        ids_of: Callable[[Any], Any] = lambda batch: batch,
    ) -> OverlapPipeline:
        return OverlapPipeline(
            self.model,
            self.dense,
            batches,
            embedding=self.embedding,
            ids_of=ids_of,
            overlap=overlap,
        )

    def overlapped(self, batches: Iterable[Any], **settings: Any) -> "Training":
        with self.pipeline(batches, **settings) as steps:
            for loss in steps:
                self.record(loss)
        return self

    def result(self) -> dict[str, Tensor]:
        dense = {f"dense.{name}": p.detach() for name, p in self.model.dense.named_parameters()}
        losses = torch.stack(self.losses) if self.losses else torch.zeros(0)
        return {"losses": losses, **reference.snapshot(self.embedding), **dense}


def new_training(case: Case) -> Training:
    return Training(Model(case.embedding()))


def differences(one: Training, other: Training) -> list[str]:
    """What is not the same to the bit."""
    left, right = one.result(), other.result()
    assert left.keys() == right.keys()
    return [
        name
        for name, value in left.items()
        if value.shape != right[name].shape
        or not torch.equal(bits(value.contiguous()), bits(right[name].contiguous()))
    ]


def assert_same(one: Training, other: Training, what: object) -> None:
    differing = differences(one, other)
    assert not differing, f"{what}: {differing}"


def check_cases(rank: int, size: int, cases: list[Case]) -> None:
    for case in cases:
        batches = case.batches(rank)
        plain = new_training(case).plainly(batches)
        assert_same(new_training(case).overlapped(batches), plain, case)
        assert_same(new_training(case).overlapped(batches, overlap=False), plain, (case, "not"))


# --- The same bits --------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_overlap_gives_the_bits_of_the_plain_loop(launch: Launcher, optimizer: str) -> None:
    launch(check_cases, 2, [Case(optimizer, shared) for shared in SHARED])


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
    take, settle, held = EmbeddingOverlap._take_late, EmbeddingOverlap.settle, [None]

    def take_the_one_before(self: EmbeddingOverlap) -> Any:
        before, held[0] = held[0], take(self)  # type: ignore[call-overload]
        return before

    def settle_both(self: EmbeddingOverlap) -> None:
        self._apply(self._take_late())
        settle(self)

    patch.setattr(EmbeddingOverlap, "_take_late", take_the_one_before)
    patch.setattr(EmbeddingOverlap, "settle", settle_both)


def look_up_before_late_gradients(patch: pytest.MonkeyPatch) -> None:
    def look_ahead(self: EmbeddingOverlap) -> None:
        if not self._has_looked_ahead:
            self._has_looked_ahead = True
            if self._boundary is not None:
                self._send_early(self._queue[0], self._boundary)
            self._apply(self._take_late())
            if self._queue:
                self._send_ids(self._queue[-1])

    patch.setattr(EmbeddingOverlap, "look_ahead", look_ahead)


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
    sent["LOW"] += (case.steps + 1) * len(others) * header
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
                    sent["LOW"] += 4
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


# --- Errors ---------------------------------------------------------------------------------------


class Planned(Exception):
    """Raised on purpose."""


class FailingBackward(torch.autograd.Function):
    """Fails when gradients come."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        raise Planned


class FailingModel(Model):
    """Fails in the calls that it is told."""

    def __init__(self, embedding: nn.Module, failures: dict[int, str]) -> None:
        super().__init__(embedding)
        self.failures = failures
        self.calls = 0

    def forward(self, batch: Any) -> Tensor:
        call, self.calls = self.calls, self.calls + 1
        failure = self.failures.get(call)
        if failure == "before":
            raise Planned
        loss = super().forward(batch)
        if failure == "forward":
            raise Planned
        result: Tensor = FailingBackward.apply(loss) if failure == "backward" else loss  # type: ignore[no-untyped-call]
        return result


def check_reset(rank: int, size: int, overlap: bool) -> None:
    # On all ranks, but not in the same place.
    places = ["before", "forward", "backward"]
    failing = {step: places[(step + rank) % 3] for step in (0, 4, 5, 9, 18, 19)}
    case = Case("Adam", 50, steps=20, skipped=tuple(failing))
    plain = new_training(case).plainly(case.batches(rank), case.skipped)
    training = Training(FailingModel(case.embedding(), failing))
    with training.pipeline(case.batches(rank), overlap=overlap) as steps:
        for step in range(case.steps):
            if step in failing:
                with pytest.raises(Planned):
                    steps.step()
                training.dense.zero_grad()
                steps.reset()
            else:
                training.record(steps.step())
        with pytest.raises(StopIteration):
            steps.step()
    assert_same(training, plain, overlap)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_after_an_error_in_a_step_and_a_reset_only_that_batch_is_lost(
    launch: Launcher, world_size: int, overlap: bool
) -> None:
    launch(check_reset, world_size, overlap)


def check_no_step_without_reset(rank: int, size: int) -> None:
    case = Case("SGD", steps=6, skipped=(2,))
    plain = new_training(case).plainly(case.batches(rank), case.skipped)
    training = Training(FailingModel(case.embedding(), {2: "forward"}))
    with training.pipeline(case.batches(rank)) as steps:
        for _ in range(2):
            training.record(steps.step())
        with pytest.raises(Planned):
            steps.step()
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"begin\(\) before the end\(\)"):
                steps.step()
        training.dense.zero_grad()
        steps.reset()
        for loss in steps:
            training.record(loss)
    assert_same(training, plain, "after the reset")


def test_without_a_reset_there_is_no_further_step_and_no_batch_is_lost(launch: Launcher) -> None:
    launch(check_no_step_without_reset, 2)


class Interrupt(BaseException):
    """Like KeyboardInterrupt."""


def check_interrupt(rank: int, size: int) -> None:
    case = Case("Adam", 50, steps=30)
    batches = case.batches(rank)
    training = new_training(case)
    try:
        with training.pipeline(batches) as steps:
            for loss in steps:
                training.record(loss)
                if len(training.losses) == 13:
                    raise Interrupt
    except Interrupt:
        pass
    assert_same(training, new_training(case).plainly(batches[:13]), "interrupted")
    training.overlapped(batches[13:])
    assert_same(training, new_training(case).plainly(batches), "gone on")


@pytest.mark.parametrize("world_size", [1, 3])
def test_an_interrupt_between_steps_loses_no_gradient(launch: Launcher, world_size: int) -> None:
    launch(check_interrupt, world_size)


def check_end_of_one_rank(rank: int, size: int, how: str, overlap: bool) -> None:
    case = Case("SGD", 50, steps=10)
    failing = {4: "forward"} if rank == 1 else {}
    training = Training(FailingModel(case.embedding(), failing))
    expected = Planned if rank == 1 else RuntimeError
    with (
        pytest.raises(expected) as caught,
        training.pipeline(case.batches(rank), overlap=overlap) as steps,
    ):
        for loss in steps:
            training.record(loss)
    if rank != 1:
        assert "rank 1" in str(caught.value)
        return
    if how == "dies":
        raise Planned
    dist.destroy_process_group()


@pytest.mark.freescale_only
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("how", ["dies", "leaves"])
def test_when_a_step_of_one_rank_fails_the_others_hear_of_it(
    launch: Launcher, how: str, overlap: bool
) -> None:
    launch(check_end_of_one_rank, 3, how, overlap, dies=[1] if how == "dies" else [])


def check_uneven_loaders(rank: int, size: int, lengths: list[int], overlap: bool) -> None:
    case = Case("Adam", 50, steps=max(lengths))
    batches = case.batches(rank)
    training = new_training(case)
    with training.pipeline(batches[: lengths[rank]], overlap=overlap) as steps:
        for _ in range(min(lengths)):
            training.record(steps.step())
        for step in range(min(lengths), max(lengths)):
            over = [each for each in range(size) if lengths[each] <= step]
            going_on = [each for each in range(size) if lengths[each] > step]
            with pytest.raises(RanksDisagreeError) as caught:
                steps.step()
            assert f"ranks {over} are over, and ranks {going_on} have another" in str(caught.value)
            steps.reset()
        with pytest.raises(StopIteration):
            steps.step()
    plain = new_training(case).plainly(batches[: min(lengths)])
    assert_same(training, plain, "what was trained")


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("lengths", [[5, 9], [4, 3], [0, 2], [3, 9, 3], [2, 3, 4]])
def test_loaders_of_different_lengths_are_an_error_on_all_ranks_in_the_same_step(
    launch: Launcher, lengths: list[int], overlap: bool
) -> None:
    launch(check_uneven_loaders, len(lengths), lengths, overlap)


def check_bad_batch(rank: int, size: int, overlap: bool, resets: bool) -> None:
    bad = (0, 5, 6, 11)
    case = Case("Adam", 50, steps=12, skipped=bad)
    plain = new_training(case).plainly(case.batches(rank), bad)
    batches = case.batches(rank)
    if rank == size - 1:
        for step in bad:
            batches[step] = torch.tensor([1, ROWS + step])
    training = new_training(case)
    with training.pipeline(batches, overlap=overlap) as steps:
        for step in range(case.steps):
            if step not in bad:
                training.record(steps.step())
                continue
            message = f"rank {size - 1}: ValueError: feature table: id {ROWS + step} is not in"
            with pytest.raises(RanksDisagreeError, match=message):
                steps.step()
            if resets:
                steps.reset()
        with pytest.raises(StopIteration):
            steps.step()
    assert_same(training, plain, overlap)


@pytest.mark.parametrize("resets", [True, False])
@pytest.mark.parametrize("overlap", [True, False])
def test_an_impossible_batch_is_an_error_in_its_own_step_on_all_ranks(
    launch: Launcher, overlap: bool, resets: bool
) -> None:
    launch(check_bad_batch, 2, overlap, resets)


def check_memory_error(rank: int, size: int) -> None:
    case = Case("Adam", 50, steps=12, skipped=(7,))
    plain = new_training(case).plainly(case.batches(rank), case.skipped)
    training = new_training(case)
    right, calls = Request.__init__, [0]

    def scarce(self: Request, *arguments: Any, **settings: Any) -> None:
        calls[0] += 1
        if calls[0] == 8 and rank == 1:
            raise MemoryError("no room for the ids")
        right(self, *arguments, **settings)

    with pytest.MonkeyPatch.context() as patch, training.pipeline(case.batches(rank)) as steps:
        patch.setattr(Request, "__init__", scarce)
        for step in range(case.steps):
            if step == 7:
                with pytest.raises(RanksDisagreeError, match=r"rank 1: MemoryError: no room for"):
                    steps.step()
            else:
                training.record(steps.step())
    assert_same(training, plain, "memory")


def test_a_rank_without_memory_for_a_batch_is_an_error_on_all(launch: Launcher) -> None:
    launch(check_memory_error, 3)


# --- Between steps --------------------------------------------------------------------------------


def check_between_steps(rank: int, size: int) -> None:
    """Evaluates, saves and loads between steps."""
    case = Case("Adam", 50, steps=30)
    everything = torch.arange(rank, ROWS)

    def between(training: Training, saved: dict[str, Any]) -> None:
        step = len(training.losses)
        if step % 4 == 1:
            with torch.no_grad():
                training.losses.append(training.embedding(everything).square().mean())
        if step == 7:
            saved.update({k: copy_of(v) for k, v in training.embedding.state_dict().items()})
        if step == 15:
            training.embedding.load_state_dict(saved)

    results = []
    for overlap in (None, True, False):
        training, saved = new_training(case), dict[str, Any]()
        if overlap is None:
            for batch in case.batches(rank):
                training.plainly([batch])
                between(training, saved)
        else:
            with training.pipeline(case.batches(rank), overlap=overlap) as steps:
                for loss in steps:
                    training.record(loss)
                    between(training, saved)
        assert saved
        results.append(training)
    assert_same(results[1], results[0], "overlapped")
    assert_same(results[2], results[0], "not overlapped")


def copy_of(value: Tensor) -> Tensor:
    return value.detach().clone()


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_looking_up_saving_and_loading_between_steps_changes_nothing(
    launch: Launcher, world_size: int
) -> None:
    launch(check_between_steps, world_size)


def check_weight(rank: int, size: int) -> None:
    case = Case("RowwiseAdagrad", 10, steps=10)
    plain, training = new_training(case), new_training(case)
    with training.pipeline(case.batches(rank)) as steps:
        for step, loss in enumerate(steps):
            training.record(loss)
            plain.plainly([case.batch(rank, step)])
            assert torch.equal(training.embedding.weight, plain.embedding.weight), step


def test_reading_the_weight_applies_what_is_under_way(launch: Launcher) -> None:
    launch(check_weight, 2)


def check_backward_between_steps(rank: int, size: int) -> None:
    case = Case("SGD", steps=6)
    training = new_training(case)
    with training.pipeline(case.batches(rank)) as steps:
        training.record(steps.step())
        loss = training.embedding(torch.tensor([1, 2])).sum()
        with pytest.raises(RuntimeError, match="backward of a look-up outside of a step"):
            loss.backward()
        for each in steps:
            training.record(each)
    assert_same(training, new_training(case).plainly(case.batches(rank)), "refused")


def test_a_backward_that_would_make_fetched_rows_stale_is_refused(launch: Launcher) -> None:
    launch(check_backward_between_steps, 2)


def check_several_pipelines(rank: int, size: int) -> None:
    case = Case("Adam", 50, steps=20)
    batches = case.batches(rank)
    training = new_training(case)
    first = training.pipeline(batches[:8])
    for loss in first:
        training.record(loss)
    with pytest.raises(RuntimeError, match="overlapped already"):
        training.pipeline(batches[8:])
    first.close()
    first.close()
    with pytest.raises(RuntimeError, match=r"prefetch\(\) after detach\(\)"):
        first.step()
    second = training.pipeline(batches[8:])
    for _ in range(3):
        training.record(second.step())
    # It has nothing more to close.
    first.close()
    for loss in second:
        training.record(loss)
    second.close()
    assert_same(training, new_training(case).plainly(batches), "two pipelines")
    training.plainly(batches[:2])


def test_one_pipeline_follows_another_once_it_is_closed(launch: Launcher) -> None:
    launch(check_several_pipelines, 2)


def check_early_end(rank: int, size: int) -> None:
    case = Case("Adam", 50, steps=20)
    training = new_training(case)
    with training.pipeline(case.batches(rank)) as steps:
        for loss in steps:
            training.record(loss)
            if len(training.losses) == 9:
                break
    assert_same(training, new_training(case).plainly(case.batches(rank)[:9]), "left early")


def test_a_loop_that_is_left_early_loses_no_gradient(launch: Launcher) -> None:
    launch(check_early_end, 2)


# --- Within a step --------------------------------------------------------------------------------


def check_served(rank: int, size: int) -> None:
    embedding = Case("SGD").embedding()
    whole = reference.whole_tables(embedding)["table"]
    overlap = EmbeddingOverlap(embedding)
    for call in (overlap.look_ahead, overlap.end):
        with pytest.raises(RuntimeError, match=r"without a begin\(\)"):
            call()
    with pytest.raises(RuntimeError, match="without a prefetched batch"):
        overlap.begin()
    ids = torch.tensor([5, 2, 5, 9 + rank])
    overlap.prefetch(ids)
    assert overlap.prefetched == 1
    assert overlap.begin()
    assert overlap.prefetched == 0
    with pytest.raises(RuntimeError, match=r"begin\(\) before the end\(\)"):
        overlap.begin()
    # The same ids in another type, shape and order; some of them.
    for again in (ids, ids.int(), ids.view(2, 2), ids.flip(0), ids[1:2], ids[:0]):
        assert torch.equal(embedding(again), whole[again.long()])
    for wrong, error, message in (
        (torch.tensor([8]), ValueError, f"rank {rank}: feature table has ids in this step that"),
        (ids + ROWS, ValueError, "is not in table table, which has 300 rows"),
        (ids - ROWS, ValueError, "is not in table table, which has 300 rows"),
        (ids + 0.5, TypeError, "ids must be integers, got torch.float32"),
    ):
        with pytest.raises(error, match=message):
            embedding(wrong)
    overlap.end()
    overlap.prefetch(None)
    # Beyond the end there is nothing, however often it is asked for.
    overlap.prefetch(ids)
    assert not overlap.begin()
    assert not overlap.begin()
    overlap.detach()
    with pytest.raises(RuntimeError, match=r"prefetch\(\) after detach\(\)"):
        overlap.prefetch(ids)


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_step_serves_what_was_prefetched_and_nothing_else(
    launch: Launcher, world_size: int
) -> None:
    launch(check_served, world_size)


def check_no_lookups(rank: int, size: int) -> None:
    case = Case("SGD")
    plain, training = new_training(case), new_training(case)
    overlap = EmbeddingOverlap(training.embedding)
    for step in range(3):
        overlap.prefetch(*([case.batch(rank, step)] if rank == 0 else []))
    for step in range(3):
        assert overlap.begin()
        if rank == 0:
            training.model(case.batch(rank, step)).backward()
        overlap.end()
        plain.model(case.batch(rank, step) if rank == 0 else torch.zeros(0).long()).backward()
    overlap.detach()
    assert_same(training, plain, "no look-up")


def test_a_rank_may_have_no_look_up_in_a_step(launch: Launcher) -> None:
    launch(check_no_lookups, 2)


def check_results(rank: int, size: int) -> None:
    case = Case("SGD", steps=3)
    for make in (
        lambda loss: (loss, {"logits": loss * 2}),
        lambda loss: {"logits": [1], "loss": loss},
    ):
        training = new_training(case)
        model: Callable[[Any], Any] = training.model
        steps = OverlapPipeline(
            lambda batch, make=make, model=model: make(model(batch)),  # type: ignore[misc]
            training.dense,
            case.batches(rank),
            embedding=training.embedding,
            ids_of=lambda batch: batch,
        )
        with steps:
            for result in steps:
                loss = result[0] if isinstance(result, tuple) else result["loss"]
                assert not loss.requires_grad
                training.record(loss)
        assert_same(training, new_training(case).plainly(case.batches(rank)), "result")
    training = new_training(case)
    steps = OverlapPipeline(
        lambda batch: "loss",
        None,
        case.batches(rank),
        embedding=training.embedding,
        ids_of=lambda batch: batch,
    )
    with pytest.raises(TypeError, match=r"must return a loss of one element.*got 'loss'"), steps:
        steps.step()
    steps = training.pipeline(case.batches(rank), ids_of=lambda batch: None)
    with pytest.raises(TypeError, match="ids_of must return the ids of a batch, got None"), steps:
        steps.step()
    with pytest.raises(ValueError, match="give it an optimizer"):
        EmbeddingOverlap(ShardedEmbedding(4, 2))


def test_models_return_losses_and_more(launch: Launcher) -> None:
    launch(check_results, 2)
