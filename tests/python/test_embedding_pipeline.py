"""Overlapped training that fails, ends early, is looked into between steps, or used wrongly."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import embedding_reference as reference
from embedding_training import ROWS, Case, Model, Training, assert_same, new_training
from freescale_pg._agreement import RanksDisagreeError
from freescale_pg.embedding import (
    EmbeddingOverlap,
    OverlapPipeline,
    ShardedEmbedding,
)
from freescale_pg.embedding.request import Request
from harness.launch import Launcher
from harness.rank import open_store

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
    store = open_store("end")
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
        # None leaves before: that would be another reason for the other's error.
        store.set(f"heard {rank}", "")
        store.wait(["heard 0", "heard 2"])
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


class Loader:
    """Batches, of which one cannot be read on this rank."""

    def __init__(self, batches: Iterable[torch.Tensor], unreadable: int | None) -> None:
        self._batches = enumerate(batches)
        self._unreadable = unreadable

    def __iter__(self) -> "Loader":
        return self

    def __next__(self) -> torch.Tensor:
        step, batch = next(self._batches)
        if step == self._unreadable:
            raise OSError("the file is gone")
        return batch


def check_failing_loader(rank: int, size: int, overlap: bool) -> None:
    case = Case("Adam", 50, steps=12, skipped=(0, 7))
    plain = new_training(case).plainly(case.batches(rank), case.skipped)
    training = new_training(case)
    batches = case.batches(rank)
    loader = Loader(batches, unreadable=7 if rank == 1 else None)

    def ids_of(batch: torch.Tensor) -> torch.Tensor:
        if rank == 0 and batch is batches[0]:
            raise KeyError("ids")
        return batch

    messages = {0: "rank 0: KeyError: 'ids'", 7: "rank 1: OSError: the file is gone"}
    with training.pipeline(loader, ids_of=ids_of, overlap=overlap) as steps:
        for step in range(case.steps):
            if step in messages:
                with pytest.raises(RanksDisagreeError, match=messages[step]):
                    steps.step()
            else:
                training.record(steps.step())
    assert_same(training, plain, "loader")


@pytest.mark.parametrize("overlap", [True, False])
def test_a_loader_that_fails_on_one_rank_is_an_error_on_all(
    launch: Launcher, overlap: bool
) -> None:
    launch(check_failing_loader, 2, overlap)


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
    with pytest.raises(RanksDisagreeError, match="ids_of must return the ids of a batch"), steps:
        steps.step()
    with pytest.raises(ValueError, match="give it an optimizer"):
        EmbeddingOverlap(ShardedEmbedding(4, 2))


def test_models_return_losses_and_more(launch: Launcher) -> None:
    launch(check_results, 2)
