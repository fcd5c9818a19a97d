"""Where TorchRec calls its collectives: few functions, each of which serves one stage."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch.distributed as dist

from freescale_pg.torchrec.stage import Stage


@dataclass(frozen=True)
class Site:
    """A function of TorchRec that calls collectives.

    Attributes:
        owner: Its class, as ``module.class`` below ``torchrec.distributed``.
        function: Its name there.
        group_of: Takes its arguments, returns the group that it calls.
        stage_of: Takes its arguments and whether the thread sends ids ahead, returns the stage.
    """

    owner: str
    function: str
    group_of: Callable[..., dist.ProcessGroup]
    stage_of: Callable[[tuple[Any, ...], bool], Stage]


# PEC's exchanges of gradients that are applied one batch late, see mark_deferred().
_deferred: "WeakSet[Any]" = WeakSet()

# The autograd functions that begin an exchange of vectors, and those that end it. The exchange of
# the gradients begins where that of the vectors ends, in the backward pass.
_VECTORS = {
    "All2All_Pooled_Req": "All2All_Pooled_Wait",
    "Variable_Batch_All2All_Pooled_Req": "Variable_Batch_All2All_Pooled_Wait",
    "All2All_Seq_Req": "All2All_Seq_Req_Wait",
    "All2Allv_Req": "All2Allv_Wait",
    "ReduceScatter_Req": "ReduceScatter_Wait",
    "ReduceScatterBase_Req": "ReduceScatterBase_Wait",
    "ReduceScatterV_Req": "ReduceScatterV_Wait",
    "AllGatherBase_Req": "AllGatherBase_Wait",
}


def _forward(begin: str) -> Site:
    return Site(
        f"comm_ops.{begin}",
        "forward",
        group_of=lambda ctx, pg, *_: pg,
        stage_of=lambda arguments, ahead: Stage.VECTORS,
    )


def _backward(end: str) -> Site:
    return Site(
        f"comm_ops.{end}",
        "backward",
        group_of=lambda ctx, *_: ctx.pg,
        stage_of=lambda arguments, ahead: Stage.GRADIENTS,
    )


SITES = [
    *map(_forward, _VECTORS.keys()),
    *map(_backward, _VECTORS.values()),
    Site(
        "dist_data.SplitsAllToAllAwaitable",
        "__init__",
        group_of=lambda self, input_tensors, pg, *_, **__: pg,
        stage_of=lambda arguments, ahead: Stage.ID_SPLITS,
    ),
    Site(
        "dist_data.KJTAllToAllTensorsAwaitable",
        "__init__",
        group_of=lambda self, pg, *_, **__: pg,
        stage_of=lambda arguments, ahead: Stage.IDS_AHEAD if ahead else Stage.IDS,
    ),
    Site(
        "pec_comm_ops.PECGradientApply",
        "dist",
        group_of=lambda self: self._pg,
        stage_of=lambda arguments, ahead: (
            Stage.DEFERRED_GRADIENTS if arguments[0] in _deferred else Stage.GRADIENTS
        ),
    ),
]

# Calls nothing itself, but makes PEC's two exchanges of gradients.
PEC_BACKWARD = ("pec_comm_ops.PECAll2AllSeqWait", "backward")


def mark_deferred(ctx: Any) -> None:
    """Notes which of the two exchanges that PEC's backward pass has made is of the late gradients.

    Args:
        ctx: The first argument of :data:`PEC_BACKWARD`.
    """
    _deferred.add(ctx.autograd_ctx.nol_grad_apply)
