"""Models and groups that get no priorities, and why."""

import importlib
import re
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed import comm_ops

import dlrm
import freescale_pg as fs
from freescale_pg.torchrec import check_groups, prioritize
from harness.launch import Launcher


def pretend_custom(group: dist.ProcessGroup) -> None:
    """What the group of a plug-in backend says of itself unless something is done about it."""
    group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
    assert group._get_backend_name() == "custom"


def check_custom_group(rank: int, size: int) -> None:
    group = dist.new_group(group_desc="embeddings")
    sharded = dlrm.shard(dlrm.make_model(), group)
    pipeline = dlrm.PIPELINES["sparse_dist"](sharded, dlrm.optimizer_of(sharded))
    assert check_groups(pipeline) == [group]
    pretend_custom(group)
    named = f"process group '{group.group_name}' (embeddings) calls itself \"custom\""
    for check in (check_groups, prioritize):
        for target in (sharded, pipeline):
            with pytest.raises(RuntimeError, match=re.escape(named)):
                check(target)


def test_groups_that_torchrec_takes_for_fakes(launch: Launcher) -> None:
    launch(check_custom_group, 2)


def check_groups_of_ours(rank: int, size: int) -> None:
    """By whichever call they are made, they are none of those."""
    for group in (None, dist.new_group(), dist.new_group(backend="cpu:freescale")):
        sharded = dlrm.shard(dlrm.make_model(), group)
        assert check_groups(sharded) == [group or dist.group.WORLD]
        prioritize(sharded).undo()


def check_hosts(rank: int, size: int) -> None:
    """The groups that TorchRec makes for tables by rows of one host have priorities too."""
    sharded = dlrm.shard(dlrm.make_model(pooled=(dlrm.ON_ONE_HOST,)))
    trainer = dlrm.Plain(sharded, dlrm.optimizer_of(sharded))
    members = [dist.get_process_group_ranks(group) for group in check_groups(sharded)]
    host, peers = rank // 2 * 2, rank % 2
    assert sorted(members) == sorted([[0, 1, 2, 3], [host, host + 1], [peers, peers + 2]])
    prioritize(sharded)
    fs.reset_stats()
    dlrm.train(trainer, [dlrm.make_batch(rank, step, 4) for step in range(2)])
    priorities = {(row.op, row.priority) for row in fs.stats().ops}
    assert priorities >= {("reduce_scatter_tensor", "URGENT"), ("all_gather_into_tensor", "HIGH")}
    assert priorities.isdisjoint(
        {("reduce_scatter_tensor", "NORMAL"), ("all_gather_into_tensor", "NORMAL")}
    )


def test_groups_of_hosts(launch: Launcher) -> None:
    launch(check_hosts, 4, environment={"LOCAL_WORLD_SIZE": "2"})


@pytest.mark.parametrize("debug", ["OFF", "DETAIL"])
def test_groups_of_ours(launch: Launcher, debug: str) -> None:
    launch(check_groups_of_ours, 2, environment={"TORCH_DISTRIBUTED_DEBUG": debug})


def check_other_backend(rank: int, size: int) -> None:
    sharded = dlrm.shard(dlrm.make_model())
    assert check_groups(sharded) == [dist.group.WORLD]
    with pytest.raises(ValueError, match=r"process group '0' \(default_pg\) is of backend 'gloo'"):
        prioritize(sharded)


def test_other_backend(launch: Launcher) -> None:
    launch(check_other_backend, 2, backend="gloo")


def test_model_without_sharded_modules() -> None:
    with pytest.raises(ValueError, match="Model has no sharded module"):
        prioritize(dlrm.make_model())
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
    pipeline = dlrm.PIPELINES["sparse_dist"](dlrm.make_model(), optimizer)
    with pytest.raises(ValueError, match="Model has no sharded module"):
        prioritize(pipeline)


def check_model_of_one_process(rank: int, size: int) -> None:
    sharded = dlrm.shard(dlrm.make_model())
    for module in sharded.modules():
        for holder in (module, *getattr(module, "_embedding_shardings", [])):
            vars(holder).update({name: None for name in ("_env", "_pg") if name in vars(holder)})
        vars(module).pop("_sharding_type_to_sharding", None)
    with pytest.raises(ValueError, match="there is no process group"):
        prioritize(sharded)


def test_model_that_is_sharded_within_one_process(launch: Launcher) -> None:
    """As for inference on several devices. TorchRec does not make one on the CPU alone."""
    launch(check_model_of_one_process, 1)


@pytest.mark.parametrize("wrong", [None, 3, nn.Linear, ["a model"]])
def test_neither_model_nor_pipeline(wrong: object) -> None:
    with pytest.raises(
        TypeError, match=f"expected a model or a pipeline.* got {type(wrong).__name__}"
    ):
        prioritize(wrong)


def check_other_torchrec(rank: int, size: int) -> None:
    """What is missing is named, and nothing is changed by half."""
    sharded = dlrm.shard(dlrm.make_model())
    original = vars(comm_ops.All2All_Pooled_Req)["forward"]
    del comm_ops.ReduceScatterV_Wait
    with pytest.raises(RuntimeError, match=r"has no .*comm_ops\.ReduceScatterV_Wait"):
        prioritize(sharded)
    assert vars(comm_ops.All2All_Pooled_Req)["forward"] is original


def test_other_version_of_torchrec(launch: Launcher) -> None:
    launch(check_other_torchrec, 1)


def check_without_torchrec(rank: int, size: int) -> None:
    for name in [name for name in sys.modules if name.startswith("freescale_pg.torchrec")]:
        del sys.modules[name]
    sys.modules["torchrec"] = None  # type: ignore[assignment]  # Which import takes for missing.
    with pytest.raises(ImportError, match=r"needs TorchRec; docs/torchrec\.md"):
        importlib.import_module("freescale_pg.torchrec")


def test_without_torchrec(launch: Launcher) -> None:
    launch(check_without_torchrec, 1, init=False)
