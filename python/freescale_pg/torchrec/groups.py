"""The process groups of a sharded model, and whether TorchRec really exchanges over them."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.embedding_sharding import EmbeddingSharding
from torchrec.distributed.train_pipeline.train_pipelines import TrainPipeline
from torchrec.distributed.types import ShardedModule, ShardingEnv

from freescale_pg._autoload import NAME


def check_groups(target: Any) -> list[dist.ProcessGroup]:
    """Checks that TorchRec will exchange over the groups of a model, and not only seem to.

    Where a group calls itself "custom", as the groups of most plug-in backends do, TorchRec takes
    it for the fake group of its own tests. Then compiled input distributions, and synchronous
    exchanges of batches whose size differs by feature, copy within the rank instead of exchanging:
    training goes on with wrong numbers and no error.

    Args:
        target: A model with sharded modules (``DistributedModelParallel``), or a pipeline with one.

    Returns:
        The groups, each once.

    Raises:
        TypeError: ``target`` is neither.
        ValueError: No module of the model is sharded, or none over a process group.
        RuntimeError: A group calls itself "custom".
    """
    groups = _groups_of(model_of(target))
    for group in groups:
        if group._get_backend_name() == "custom":
            raise RuntimeError(
                f'{title(group)} calls itself "custom", and TorchRec takes such a group for a fake:'
                " it would copy within each rank instead of exchanging, and train on wrong numbers."
                f' Make the group with backend="{NAME}"'
            )
    return groups


def check_freescale_groups(target: Any) -> list[dist.ProcessGroup]:
    """As :func:`check_groups`, and that the groups are ours.

    Raises:
        ValueError: A group is of another backend.
    """
    groups = check_groups(target)
    for group in groups:
        backend = _backend_of(group)
        if backend != NAME:
            raise ValueError(
                f"{title(group)} is of backend {backend!r}, which knows no priorities; make it"
                f' with backend="{NAME}"'
            )
    return groups


def model_of(target: Any) -> nn.Module:
    """The model that a pipeline trains, or ``target`` if it is a model.

    Raises:
        TypeError: It is neither, or a pipeline that keeps its model to itself.
    """
    if isinstance(target, nn.Module):
        return target
    model = getattr(target, "_model", None)
    if isinstance(target, TrainPipeline) and isinstance(model, nn.Module):
        return model
    raise TypeError(
        "expected a model or a pipeline of TorchRec that has one, such as TrainPipelineSparseDist,"
        f" got {type(target).__name__}"
    )


def title(group: dist.ProcessGroup) -> str:
    """How messages call a group."""
    # What torch calls a group of which nobody said more.
    known = group.group_desc not in ("", "undefined")
    return f"process group {group.group_name!r}" + (f" ({group.group_desc})" if known else "")


def _backend_of(group: dist.ProcessGroup) -> str:
    """By the backend's own word: with TORCH_DISTRIBUTED_DEBUG=DETAIL torch wraps it."""
    try:
        return str(group._get_backend(torch.device("cpu")).name())
    except RuntimeError:  # No backend for the CPU at all.
        return dist.get_backend(group)


def _groups_of(model: nn.Module) -> list[dist.ProcessGroup]:
    sharded = [module for module in model.modules() if isinstance(module, ShardedModule)]
    if not sharded:
        raise ValueError(
            f"{type(model).__name__} has no sharded module: nothing to exchange. Wrap the model in"
            " torchrec.distributed.DistributedModelParallel first"
        )
    # A dict, as it keeps the order and each group once.
    groups = list(dict.fromkeys(group for module in sharded for group in _held_groups(module)))
    if not groups:
        raise ValueError(
            f"{type(model).__name__} is sharded within this process only: there is no process group"
        )
    return groups


def _held_groups(holder: object) -> Iterator[dist.ProcessGroup]:
    """The groups among the attributes of a sharded module, its shardings and its environments.

    Shardings that go by the host's boundaries make groups of their own.
    """
    for value in list(vars(holder).values()):
        values = value.values() if isinstance(value, dict) else value
        for part in values if isinstance(value, (dict, list, tuple)) else [value]:
            if isinstance(part, dist.ProcessGroup):
                yield part
            elif isinstance(part, (EmbeddingSharding, ShardingEnv)):
                yield from _held_groups(part)
