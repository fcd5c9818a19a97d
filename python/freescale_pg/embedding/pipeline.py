"""Training steps whose embedding exchange hides behind the computation."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeAlias

import torch
from torch import Tensor

from freescale_pg._agreement import RanksDisagreeError
from freescale_pg.embedding.overlap import Ahead, EmbeddingOverlap
from freescale_pg.embedding.sharded_embedding import ShardedEmbedding, ShardedEmbeddingCollection

# From a batch to all its look-ups.
IdsOf: TypeAlias = Callable[[Any], Ahead | list[Ahead]]

# Beside the present batch: the next one, whose rows travel, and the one whose ids do.
_AHEAD = 2
# In the place of a batch that the loader failed to give.
_MISSING = object()


class OverlapPipeline:
    """Trains with an embedding whose rows travel while other batches are computed.

    Each :meth:`step` does forward, backward and optimizer for one batch, while ids and rows of the
    next ones come in and gradients of the last one go out; see :class:`EmbeddingOverlap`. Weights
    and losses are those of a plain loop, to the bit.

    All ranks must get the same number of batches, as
    :class:`~freescale_pg.balance.BalancedBatchSampler` gives them; if not, all raise an error in
    the same step.

    Use it as a context manager, or call :meth:`close` at the end: only then have the last gradients
    been applied. Look-ups of the embedding between steps, its state dict and its ``weight`` apply
    them first. After an error within a step that comes on all ranks, :meth:`reset` and go on with
    the batch after it.

    Args:
        model: Called with a batch; returns the loss, a scalar, or a tuple or dict that has it first
            or as ``"loss"``. Looks rows up in ``embedding``, which may be a part of it.
        optimizer: Of the dense part; None: there is none to step.
        loader: Batches of this rank.
        embedding: With an optimizer of its own.
        ids_of: Returns the ids of a batch that the model will look up: as for the embedding, or a
            list of them where it is called several times.
        overlap: False: fetch each batch when its step begins, for comparison.

    Raises:
        ValueError: The embedding has no optimizer.
        RuntimeError: An earlier pipeline of the embedding was not closed.

    Example:
        >>> loader = DataLoader(dataset, batch_sampler=sampler)
        >>> with OverlapPipeline(
        ...     model, optimizer, loader, embedding=items, ids_of=lambda batch: batch.ids
        ... ) as steps:
        ...     for loss in steps:
        ...         schedule.step()
    """

    def __init__(
        self,
        model: Callable[[Any], Any],
        optimizer: torch.optim.Optimizer | None,
        loader: Iterable[Any],
        *,
        embedding: ShardedEmbedding | ShardedEmbeddingCollection,
        ids_of: IdsOf,
        overlap: bool = True,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._overlap = EmbeddingOverlap(embedding)
        self._loader = iter(loader)
        self._ids_of = ids_of
        self._ahead = _AHEAD if overlap else 0
        # Batches that have not begun, oldest first; None: there are no more.
        self._batches: deque[Any | None] = deque()

    def step(self) -> Any:
        """Trains on the next batch; collective.

        Returns:
            What the model returned, without its graph.

        Raises:
            StopIteration: There are no more batches, on all ranks.
            RanksDisagreeError: On all ranks, in the batch's own step, if only some have another
                one, if the ids of one are impossible, or if its loader or ``ids_of`` failed.
            RuntimeError: A rank is lost.
        """
        self._prefetch(max(1, self._ahead))
        try:
            if not self._overlap.begin():
                raise StopIteration
        except RanksDisagreeError:
            # The next step is that of another batch.
            self._batches.popleft()
            raise
        batch = self._batches.popleft()
        self._prefetch(self._ahead)
        result = self._model(batch)
        self._overlap.look_ahead()
        _loss_of(result).backward()
        self._overlap.end()
        if self._optimizer is not None:
            self._optimizer.step()
            self._optimizer.zero_grad()
        return _detached(result)

    def __iter__(self) -> Iterator[Any]:
        """Steps until the batches are over."""
        while True:
            try:
                result = self.step()
            except StopIteration:
                return
            yield result

    def settle(self) -> None:
        """Applies all gradients of past steps; collective. Batches ahead stay."""
        self._overlap.settle()

    def reset(self) -> None:
        """Makes it ready for the next batch after an error in a step; collective, on all ranks.

        The batch of that step is skipped; no other is.
        """
        self._overlap.reset()

    def close(self) -> None:
        """Applies the last gradients and lets the embedding fetch for itself again; collective."""
        self._overlap.detach()

    def __enter__(self) -> "OverlapPipeline":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes; after an error, as far as that does not need ranks that may be elsewhere now."""
        if kind is None:
            self.close()
            return
        # If a rank is lost, the error that is under way says so already, or has come before.
        with suppress(RuntimeError):
            self._overlap.abandon()

    def _prefetch(self, count: int) -> None:
        """Sees to it that so many batches that have not begun are prefetched, or all there are."""
        while self._overlap.prefetched < count:
            place = self._overlap.prefetched
            if place and self._batches[place - 1] is None:
                return
            # What goes wrong here is told to all ranks, which would wait for this one.
            try:
                if place == len(self._batches):
                    self._batches.append(next(self._loader, None))
                ids = self._ids(self._batches[place])
            except Exception as error:
                if place == len(self._batches):
                    self._batches.append(_MISSING)
                self._overlap.prefetch_failed(error)
            else:
                self._overlap.prefetch(*ids)

    def _ids(self, batch: Any | None) -> list[Ahead | None]:
        if batch is None:
            return [None]
        if batch is _MISSING:
            raise RuntimeError("the loader failed to give this batch")
        ids = self._ids_of(batch)
        if ids is None:
            # To the overlap it would mean that there are no more batches.
            raise TypeError("ids_of must return the ids of a batch, got None")
        return [*ids] if isinstance(ids, list) else [ids]


def _loss_of(result: Any) -> Tensor:
    if isinstance(result, dict):
        result = result["loss"]
    elif isinstance(result, tuple):
        result = result[0]
    if not isinstance(result, Tensor) or result.numel() != 1:
        raise TypeError(
            "the model must return a loss of one element, alone, first in a tuple or as 'loss' in a"
            f" dict; got {result!r}"
        )
    return result


def _detached(result: Any) -> Any:
    if isinstance(result, Tensor):
        return result.detach()
    if isinstance(result, dict):
        return {key: _detached(value) for key, value in result.items()}
    if isinstance(result, tuple):
        return tuple(_detached(value) for value in result)
    return result
