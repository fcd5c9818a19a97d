"""Gives a TorchRec model or pipeline its priorities."""

import functools
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch.distributed as dist

from freescale_pg.torchrec import hooks
from freescale_pg.torchrec.groups import check_freescale_groups, title
from freescale_pg.torchrec.stage import PRIORITIES, Stage

_WAIT = "wait_sparse_data_dist"


def prioritize(target: Any) -> "Prioritized":
    """Gives every exchange of a TorchRec model, unmodified, the priority of its stage.

    Forward vectors and the splits of ids become URGENT, gradients of vectors HIGH, and ids LOW
    where a pipeline sends them while it trains on an earlier batch. Where nothing is pipelined, or
    a module cannot be, the step waits for its ids, and they are URGENT. What else calls the groups,
    ``DistributedDataParallel`` above all, keeps the groups' priority. :data:`PRIORITIES` has all
    stages.

    The priorities go by the groups of the model: other models on them have them as well. In these
    exchanges they take precedence over :func:`freescale_pg.priority`. Results do not change.

    Args:
        target: A pipeline derived from TorchRec's ``TrainPipelineSparseDist``, one that sends no
            ids ahead (``TrainPipelineBase``), or the model itself, sharded by
            ``DistributedModelParallel``. At any step, on every rank that shall have them: ranks
            need not agree.

    Returns:
        What was given which priority, to print and to undo. The same object again for a target that
        has its priorities already.

    Raises:
        TypeError: ``target`` is neither a model nor a pipeline with one.
        ValueError: No module of the model is sharded, or a group is of another backend.
        RuntimeError: A group calls itself "custom" (see :func:`check_groups`), or this TorchRec is
            not the one that is known.

    Example:
        >>> prioritized = prioritize(pipeline)
        >>> print(prioritized)
        >>> prioritized.undo()
    """
    # Before the look-up, which would fail with an error of its own for things without references.
    groups = check_freescale_groups(target)
    if target not in _known:
        _known[target] = Prioritized(target, groups)
    return _known[target]


class Prioritized:
    """A model or pipeline whose exchanges have priorities. Made by :func:`prioritize`.

    Attributes:
        groups: The groups concerned, as messages call them.
        priorities: Of each stage that the target may have.
    """

    def __init__(self, target: Any, groups: list[dist.ProcessGroup]) -> None:
        self.groups = tuple(title(group) for group in groups)
        self._name = type(target).__name__
        # Not the objects themselves: this one must not keep alive what the user has dropped.
        self._target = ref(target)
        self._groups = [ref(group) for group in groups]
        self._undone = False
        hooks.add(groups)
        pipelined = hasattr(target, _WAIT)
        if pipelined:
            _watch(target)
        self.priorities = {
            stage: priority
            for stage, priority in PRIORITIES.items()
            if pipelined or stage is not Stage.IDS_AHEAD
        }

    def undo(self) -> None:
        """Takes the priorities back. Calling it again changes nothing."""
        if self._undone:
            return
        self._undone = True
        target = self._target()
        if target is not None:
            del _known[target]
            vars(target).pop(_WAIT, None)
        hooks.remove(group for reference in self._groups if (group := reference()) is not None)

    def __str__(self) -> str:
        """A table for people, one line for each stage."""
        lines = [f"{self._name} on {', '.join(self.groups)}"]
        lines += [f"  {stage.value:<28}{p.name}" for stage, p in self.priorities.items()]
        lines.append(f"  {'all else':<28}the group's")
        return "\n".join(lines)


_known: "WeakKeyDictionary[Any, Prioritized]" = WeakKeyDictionary()


def _watch(pipeline: Any) -> None:
    """Has a pipeline say when it sends ids ahead.

    TorchRec sends the ids of a batch from this method. The batch in front is trained on next, so
    its ids are awaited: those of the first batch, or of all in a pipeline of depth one.
    """
    original = pipeline.wait_sparse_data_dist

    @functools.wraps(original)
    def wait_sparse_data_dist(context: Any) -> None:
        in_front = bool(pipeline.contexts) and context is pipeline.contexts[0]
        with hooks.sending_ahead(not in_front):
            original(context)

    pipeline.wait_sparse_data_dist = wait_sparse_data_dist
