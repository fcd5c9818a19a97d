"""What TorchRec exchanges in a training step, and how urgent each of it is."""

import enum

from freescale_pg._priority import Priority


class Stage(enum.Enum):
    """What an exchange is for. The value is what tables call it.

    Attributes:
        ID_SPLITS: How many ids each rank will send to each other: a few integers.
        VECTORS: Embedding vectors, pooled or one for each id, on their way to the samples.
        IDS: Lengths and values of the batch that is trained on next, for which it waits.
        GRADIENTS: Gradients of the vectors, on their way back.
        IDS_AHEAD: Lengths and values of a later batch, which a pipeline sends while it trains.
        DEFERRED_GRADIENTS: Gradients that TorchRec's PEC pipeline applies one batch late.
    """

    ID_SPLITS = "id splits"
    VECTORS = "embedding vectors"
    IDS = "ids of the current batch"
    GRADIENTS = "gradients of the vectors"
    IDS_AHEAD = "ids of a later batch"
    DEFERRED_GRADIENTS = "deferred gradients"


# The forward pass stands still without its vectors, and the whole input distribution of a batch
# without its splits, be the batch a later one or not. What is absent here (checkpoints, the
# planner, DistributedDataParallel) keeps its group's priority.
PRIORITIES = {
    Stage.ID_SPLITS: Priority.URGENT,
    Stage.VECTORS: Priority.URGENT,
    Stage.IDS: Priority.URGENT,
    Stage.GRADIENTS: Priority.HIGH,
    Stage.IDS_AHEAD: Priority.LOW,
    Stage.DEFERRED_GRADIENTS: Priority.BACKGROUND,
}
