"""Which priority each exchange of TorchRec has, as the recorder of calls saw it."""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torchrec.distributed import comm_ops, dist_data, pec_comm_ops

import dlrm
import freescale_pg as fs
from freescale_pg.torchrec import PRIORITIES, Stage, prioritize
from harness.launch import Launcher

STEPS = 4
# Of a step once all is set up, by operation and dtype: tables that are sharded by table, row and
# column, each as bags and as lists. Bags by row are reduced, and their gradients gathered.
VECTORS = {("all_to_all_single", "float32"): 5, ("reduce_scatter_tensor", "float32"): 1}
GRADIENTS = {("all_to_all_single", "float32"): 5, ("all_gather_into_tensor", "float32"): 1}
# Lengths and values.
IDS = 12
ID_OP = ("all_to_all_single", "int64")
# Each module sends its own, unless a pipeline puts all together.
SPLITS, FUSED_SPLITS = 6, 1

Calls = Counter[tuple[str, str, str]]


def calls_of(body: Callable[[], Any]) -> Calls:
    """How many calls of each operation, dtype and priority this process makes in ``body``.

    Those of DistributedDataParallel are left out where they only prepare the reduction.
    """
    first = len(fs.debug.dump()["records"])
    body()
    records = fs.debug.dump()["records"][first:]
    return Counter((r["op"], r["dtype"], r["priority"]) for r in records if r["op"] != "broadcast")


def at(priority: str, calls: dict[tuple[str, str], int]) -> Calls:
    return Counter({(*call, priority): count for call, count in calls.items()})


def ids_at(priority: str, calls: Calls) -> int:
    """How many of them exchanged ids, or their splits, at a priority."""
    op, dtype = ID_OP
    return calls[(op, dtype, priority)]


def step_of(splits: int, ids: Calls) -> Calls:
    """What a prioritized step of DLRM calls once all is set up."""
    return (
        at("URGENT", {ID_OP: splits})
        + ids
        + at("URGENT", VECTORS)
        + at("HIGH", GRADIENTS)
        + at("NORMAL", {("all_reduce", "float32"): 2})
    )


def make(name: str, group: dist.ProcessGroup | None = None) -> tuple[Any, Any]:
    """A sharded model and what trains it."""
    sharded = dlrm.shard(dlrm.make_model(), group)
    return sharded, dlrm.PIPELINES[name](sharded, dlrm.optimizer_of(sharded))


def batches_of(rank: int, steps: int = STEPS) -> list[dlrm.Batch]:
    return [dlrm.make_batch(rank, step, 6) for step in range(steps)]


def calls_by_step(trainer: Any, rank: int) -> list[Calls]:
    stream = iter(batches_of(rank))
    return [calls_of(lambda: trainer.progress(stream)) for _ in range(STEPS)]


# --- Each stage -----------------------------------------------------------------------------------


def check_model(rank: int, size: int) -> None:
    """A step that sends its own ids waits for them."""
    sharded, trainer = make("plain")
    prioritize(sharded)
    steps = calls_by_step(trainer, rank)
    assert steps[-1] == step_of(SPLITS, at("URGENT", {ID_OP: IDS}))


def check_pipeline(rank: int, size: int) -> None:
    _, trainer = make("sparse_dist")
    prioritize(trainer)
    first, *middle, last = calls_by_step(trainer, rank)
    for step in middle[:-1]:
        assert step == step_of(FUSED_SPLITS, at("LOW", {ID_OP: IDS}))
    # The first batch is awaited, the second one sent ahead; in the end there is none to send.
    assert ids_at("LOW", first) == IDS
    assert ids_at("URGENT", first) >= IDS
    assert last == step_of(0, Counter())


def check_pipeline_of_depth_one(rank: int, size: int) -> None:
    """It fuses the splits as the others do, but trains on the very batch that it sends."""
    _, trainer = make("lite")
    prioritize(trainer)
    assert calls_by_step(trainer, rank)[-1] == step_of(FUSED_SPLITS, at("URGENT", {ID_OP: IDS}))


def check_backward_on_another_thread(rank: int, size: int) -> None:
    """As autograd does on CUDA; on the CPU it keeps to the thread that called it."""
    sharded, trainer = make("plain")
    prioritize(sharded)

    def backward(loss: torch.Tensor) -> None:
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()

    trainer.backward = backward
    steps = calls_by_step(trainer, rank)
    assert steps[-1] == step_of(SPLITS, at("URGENT", {ID_OP: IDS}))


@pytest.mark.parametrize(
    "check",
    [check_model, check_pipeline, check_pipeline_of_depth_one, check_backward_on_another_thread],
)
def test_stages(launch: Launcher, check: Callable[..., None]) -> None:
    launch(check, 2)


def vectors_of(exchange: str) -> Any:
    """Begins one of the exchanges that the model above has none of, on the default group."""
    size, group = dist.get_world_size(), dist.group.WORLD
    rows = torch.ones(2 * size, 4, requires_grad=True)
    if exchange == "reduce_scatter_v":
        splits = [2 + size - 1, *[1] * (size - 1)]
        return comm_ops.reduce_scatter_v_pooled(rows[: sum(splits)], splits, group)
    if exchange == "reduce_scatter":
        return comm_ops.reduce_scatter_pooled(list(rows.split(2)), group)
    if exchange == "all_gather":
        return comm_ops.all_gather_base_pooled(rows, group)
    # Two samples of each rank, a feature of width 4 on each.
    return comm_ops.variable_batch_alltoall_pooled(
        rows.flatten(), [[2]] * size, [2] * size, [[4]] * size, group
    )


def check_rarer_exchange(rank: int, size: int, exchange: str, forward: str, backward: str) -> None:
    sharded, _ = make("plain")
    prioritize(sharded)
    found: list[torch.Tensor] = []
    calls = calls_of(lambda: found.append(vectors_of(exchange).wait()))
    assert calls == at("URGENT", {(forward, "float32"): 1})
    calls = calls_of(lambda: found[0].sum().backward())
    assert calls == at("HIGH", {(backward, "float32"): 1})


@pytest.mark.parametrize(
    ("exchange", "forward", "backward"),
    [
        ("reduce_scatter_v", "reduce_scatter", "all_gather"),
        ("reduce_scatter", "reduce_scatter", "all_gather"),
        ("all_gather", "all_gather_into_tensor", "reduce_scatter_tensor"),
        ("variable_batch", "all_to_all_single", "all_to_all_single"),
    ],
)
def test_exchanges_that_few_models_have(
    launch: Launcher, exchange: str, forward: str, backward: str
) -> None:
    launch(check_rarer_exchange, 2, exchange, forward, backward)


def check_deferred_gradients(rank: int, size: int) -> None:
    """The exchanges of TorchRec's PEC alone: the pipeline around them wants CUDA."""
    sharded, _ = make("plain")
    prioritize(sharded)
    rows = torch.arange(2 * size)
    even = ([1] * size, [1] * size)
    info = pec_comm_ops.PECAll2AllSeqInfo(
        forward_permute=rows,
        backward_ol_permute=rows[:size],
        backward_nol_permute=rows[size:],
        backward_splits=pec_comm_ops.OverlapSplits(input_splits=even, output_splits=even),
        pg=dist.group.WORLD,
    )
    anchor = torch.ones(1, requires_grad=True)
    parts = torch.ones(2 * size, 4).split(size)
    pec_comm_ops.PECAll2AllSeqWait.apply(info, *parts, anchor).sum().backward()
    for exchange, priority in [(info.ol_grad_apply, "HIGH"), (info.nol_grad_apply, "BACKGROUND")]:
        calls = calls_of(exchange.dist)
        assert calls == at(priority, {("all_to_all_single", "float32"): 1})
        exchange._work.wait()


def test_deferred_gradients(launch: Launcher) -> None:
    launch(check_deferred_gradients, 2)


# --- What it leaves alone -------------------------------------------------------------------------


def check_same_bits(rank: int, size: int) -> None:
    for name in dlrm.PIPELINES:
        logits = []
        for prioritized in (False, True):
            sharded, trainer = make(name)
            if prioritized:
                prioritize(sharded if name == "plain" else trainer)
            logits.append(dlrm.train(trainer, batches_of(rank)))
        for left, right in zip(*logits, strict=True):
            assert left.tobytes() == right.tobytes(), name


@pytest.mark.parametrize("size", [2, 3])
def test_results_are_the_same_to_the_bit(launch: Launcher, size: int) -> None:
    launch(check_same_bits, size)


def check_other_calls(rank: int, size: int) -> None:
    """Other groups, and calls in between, keep the priority that they have."""
    low = dist.new_group(pg_options=fs.Options(priority=fs.Priority.LOW))
    sharded, trainer = make("plain", low)
    prioritize(sharded)
    stream = iter(batches_of(rank))
    for _ in range(STEPS - 1):
        trainer.progress(stream)
    with fs.priority(fs.Priority.BACKGROUND):
        calls = calls_of(lambda: trainer.progress(stream))
        assert calls[("all_reduce", "float32", "BACKGROUND")] == 2
        assert calls[("all_to_all_single", "float32", "HIGH")] == 5
        calls = calls_of(lambda: dist.all_reduce(torch.ones(1)))
        assert calls == at("BACKGROUND", {("all_reduce", "float32"): 1})
    begun: list[Any] = []
    calls = calls_of(lambda: begun.append(vectors_of("all_gather")))
    assert calls == at("NORMAL", {("all_gather_into_tensor", "float32"): 1})
    begun[0].wait()
    calls = calls_of(lambda: dist.all_reduce(torch.ones(1), group=low))
    assert calls == at("LOW", {("all_reduce", "float32"): 1})


def test_other_calls(launch: Launcher) -> None:
    launch(check_other_calls, 2)


def check_compiled(rank: int, size: int) -> None:
    """The compiler must still be able to trace TorchRec; what it makes has the group's priority."""
    sharded, _ = make("plain")
    prioritize(sharded)

    def exchange(splits: torch.Tensor) -> torch.Tensor:
        received = dist_data.SplitsAllToAllAwaitable([splits], dist.group.WORLD)._output_tensor
        assert isinstance(received, torch.Tensor)
        return received + 0

    compiled = torch.compile(exchange, backend="eager", fullgraph=True)
    received: list[torch.Tensor] = []
    calls = calls_of(lambda: received.append(compiled(torch.arange(size) + 10 * rank)))
    assert received[0].tolist() == [10 * peer + rank for peer in range(size)]
    assert calls == at("NORMAL", {ID_OP: 1})


def test_compiled_exchange(launch: Launcher) -> None:
    launch(check_compiled, 2)


# --- Twice, and back ------------------------------------------------------------------------------


def priorities_of_vectors(trainer: Any, stream: Any) -> set[str]:
    calls = calls_of(lambda: trainer.progress(stream))
    return {priority for op, dtype, priority in calls if dtype == "float32" and op != "all_reduce"}


def check_undo(rank: int, size: int) -> None:
    originals = [
        vars(owner)[name]
        for owner, name in [
            (comm_ops.All2All_Pooled_Req, "forward"),
            (comm_ops.All2All_Pooled_Wait, "backward"),
        ]
    ]
    sharded, trainer = make("sparse_dist")
    stream = iter(batches_of(rank, 8))
    assert priorities_of_vectors(trainer, stream) == {"NORMAL"}
    first = prioritize(trainer)
    assert prioritize(trainer) is first
    of_model = prioritize(sharded)
    assert priorities_of_vectors(trainer, stream) == {"URGENT", "HIGH"}
    first.undo()
    first.undo()
    # The model still has them, but nobody says any more which ids are sent ahead.
    calls = calls_of(lambda: trainer.progress(stream))
    assert calls == step_of(FUSED_SPLITS, at("URGENT", {ID_OP: IDS}))
    of_model.undo()
    calls = calls_of(lambda: trainer.progress(stream))
    assert {priority for *_, priority in calls} == {"NORMAL"}
    assert vars(comm_ops.All2All_Pooled_Req)["forward"] is originals[0]
    assert vars(comm_ops.All2All_Pooled_Wait)["backward"] is originals[1]
    again = prioritize(trainer)
    assert again is not first
    first.undo()
    assert ids_at("LOW", calls_of(lambda: trainer.progress(stream))) == IDS


def test_twice_and_undone(launch: Launcher) -> None:
    launch(check_undo, 2)


def check_table(rank: int, size: int) -> None:
    _, trainer = make("sparse_dist")
    prioritized = prioritize(trainer)
    lines = str(prioritized).splitlines()
    assert lines[0] == "TrainPipelineSparseDist on process group '0' (default_pg)"
    table = {line[:30].strip(): line[30:] for line in lines[1:]}
    assert table.pop("all else") == "the group's"
    assert table == {stage.value: priority.name for stage, priority in PRIORITIES.items()}
    assert prioritized.priorities == PRIORITIES
    # A model cannot send ahead.
    assert Stage.IDS_AHEAD not in prioritize(make("plain")[0]).priorities


def test_table(launch: Launcher) -> None:
    launch(check_table, 1)
