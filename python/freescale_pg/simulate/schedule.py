"""In which order a rank computes, asks for exchanges, and waits for them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

from freescale_pg._priority import Priority


class Traffic(Enum):
    """What travels in a step, by the names of reports."""

    IDS = "ids"
    VECTORS = "embedding vectors"
    EARLY_VECTORS = "vectors fetched ahead"
    MASKS = "what batches share"
    GRADIENTS = "embedding gradients"
    LATE_GRADIENTS = "late gradients"
    BUCKETS = "dense gradients"


# As freescale_pg.embedding.overlap gives them; what DDP reduces has none, so NORMAL.
PRIORITIES = {
    Traffic.IDS: Priority.LOW,
    Traffic.VECTORS: Priority.URGENT,
    Traffic.EARLY_VECTORS: Priority.LOW,
    Traffic.MASKS: Priority.HIGH,
    Traffic.GRADIENTS: Priority.HIGH,
    Traffic.LATE_GRADIENTS: Priority.BACKGROUND,
    Traffic.BUCKETS: Priority.NORMAL,
}


class Flow(NamedTuple):
    """One collective.

    Attributes:
        traffic: What it carries.
        step: The batch that this belongs to.
        part: Which bucket.
    """

    traffic: Traffic
    step: int
    part: int = 0


class Stage(Enum):
    """What a rank computes."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


@dataclass(frozen=True)
class Begin:
    """A step begins."""

    step: int


@dataclass(frozen=True)
class Post:
    """Asks for an exchange, and goes on."""

    flow: Flow


@dataclass(frozen=True)
class Wait:
    """Waits for an exchange; one that was never asked for, before the first step, is over."""

    flow: Flow


@dataclass(frozen=True)
class Compute:
    """Computes a part of a stage.

    Attributes:
        stage: Which.
        step: Of which batch.
        part: Of the stage's time.
    """

    stage: Stage
    step: int
    part: float = 1.0


@dataclass(frozen=True)
class Meanwhile:
    """Beside what follows: waits for some exchanges, then asks for another.

    Attributes:
        after: What to wait for.
        flow: What to ask for.
    """

    after: tuple[Flow, ...]
    flow: Flow


Instruction: TypeAlias = Begin | Post | Wait | Compute | Meanwhile
# From the number of a step and of DDP's buckets to what a rank does in the step.
Schedule: TypeAlias = Callable[[int, int], Iterator[Instruction]]


def _forward_backward(step: int, buckets: int, between: Post | None) -> Iterator[Instruction]:
    """A forward, and a backward that gets to each bucket in equal times."""
    yield Compute(Stage.FORWARD, step)
    if between is not None:
        yield between
    parts = max(buckets, 1)
    for part in range(parts):
        yield Compute(Stage.BACKWARD, step, 1 / parts)
        if buckets:
            yield Post(Flow(Traffic.BUCKETS, step, part))


def _wait_for_buckets(step: int, buckets: int) -> Iterator[Instruction]:
    for part in range(buckets):
        yield Wait(Flow(Traffic.BUCKETS, step, part))


def blocking(step: int, buckets: int) -> Iterator[Instruction]:
    """Ids, vectors and gradients when they are needed: a :class:`ShardedEmbedding` by itself."""
    yield Begin(step)
    for traffic in (Traffic.IDS, Traffic.VECTORS):
        yield Post(Flow(traffic, step))
        yield Wait(Flow(traffic, step))
    yield from _embedding_in_backward(step, buckets)


def ids_ahead(step: int, buckets: int) -> Iterator[Instruction]:
    """The ids of the next batch travel behind this one, vectors and gradients when needed.

    What TorchRec's ``TrainPipelineSparseDist`` does.
    """
    yield Begin(step)
    yield Wait(Flow(Traffic.IDS, step))
    yield Post(Flow(Traffic.VECTORS, step))
    yield Post(Flow(Traffic.IDS, step + 1))
    yield Wait(Flow(Traffic.VECTORS, step))
    yield from _embedding_in_backward(step, buckets)


def _embedding_in_backward(step: int, buckets: int) -> Iterator[Instruction]:
    """The rest of a step: embedding gradients are exchanged, and applied, within the backward."""
    yield from _forward_backward(step, buckets, None)
    yield Post(Flow(Traffic.GRADIENTS, step))
    yield Wait(Flow(Traffic.GRADIENTS, step))
    yield from _wait_for_buckets(step, buckets)
    yield Compute(Stage.OPTIMIZER, step)


def overlapped(step: int, buckets: int) -> Iterator[Instruction]:
    """Only what consecutive batches share is waited for: ``freescale_pg.embedding.overlap``."""
    meanwhile = (Flow(Traffic.LATE_GRADIENTS, step - 1), Flow(Traffic.MASKS, step))
    yield Begin(step)
    yield Wait(Flow(Traffic.GRADIENTS, step - 1))
    yield Post(Flow(Traffic.VECTORS, step))
    yield Wait(Flow(Traffic.IDS, step + 1))
    yield Post(Flow(Traffic.MASKS, step))
    yield Meanwhile(meanwhile, Flow(Traffic.EARLY_VECTORS, step + 1))
    yield Wait(Flow(Traffic.EARLY_VECTORS, step))
    yield Wait(Flow(Traffic.VECTORS, step))
    yield from _forward_backward(step, buckets, Post(Flow(Traffic.IDS, step + 2)))
    yield from _wait_for_buckets(step, buckets)
    for flow in meanwhile:  # its thread is joined
        yield Wait(flow)
    yield Post(Flow(Traffic.GRADIENTS, step))
    yield Post(Flow(Traffic.LATE_GRADIENTS, step))
    yield Compute(Stage.OPTIMIZER, step)
