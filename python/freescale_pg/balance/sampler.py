"""A batch sampler that gives every rank the same load."""

import dataclasses
import hashlib
import operator
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch.distributed as dist
from torch.utils.data import Sampler

from freescale_pg._agreement import check_agreement
from freescale_pg.balance.cost import CostModel, Linear, evaluate
from freescale_pg.balance.epoch_order import EpochOrder
from freescale_pg.balance.global_batch import GlobalBatch, plan_global_batch
from freescale_pg.balance.imbalance import EpochBalance, EpochTally
from freescale_pg.balance.lengths import LengthColumn, Lengths
from freescale_pg.balance.progress import Progress
from freescale_pg.balance.workload import Workload, quantiles

_STATE_VERSION = 1
# From here on a sample is reported that makes its rank the slowest in any assignment.
_DOMINATED = 1.05
# Loaders fetch a few batches ahead for each of their workers.
_REMEMBERED_SHARES = 4096


class BalancedBatchSampler(Sampler[list[int]]):
    """Deals each global batch out so that all ranks have about the same to do.

    For ``DataLoader(dataset, batch_sampler=…)``. In every step the ranks together get exactly the
    samples that ``DistributedSampler`` would give them of the same order; only who gets which of
    them is chosen, by their costs. So losses and gradients of the global batch, and with them the
    training, stay what they are. What does not stay is whatever looks at one rank's samples alone:
    negatives taken from the own batch, BatchNorm without synchronisation, metrics averaged per
    rank.

    The batches are a pure function of seed, epoch and step. Each rank computes the whole plan of a
    step by itself, in integers, so that all come to the same one without communication; only at
    the start of a first pass they compare what they were given.

    All ranks make the same number of steps. The rest of an epoch that does not fill a global batch
    is dropped or dealt out in smaller batches, filled up with duplicates where it does not come out
    even. Duplicates come last in a batch and must not count: see :meth:`real_samples` and
    :meth:`loss_weight`.

    Args:
        lengths: Length of each sample, in tokens: a list, a NumPy array (also memory-mapped), a
            tensor, or an Arrow column; kept by reference and not copied where its type allows. Or
            the costs of the samples, if they are known; then leave ``cost_model`` out.
        batch_size: Samples per rank and step; with ``counts="uneven"`` on average.
        num_replicas: Number of ranks; None: the size of ``group``.
        rank: This rank; None: the rank in ``group``.
        shuffle: Whether each epoch has an order of its own; else all have the data set's.
        seed: Of the order; must be the same on all ranks. 0 … 2⁶³ - 1.
        drop_last: Whether to drop the rest of an epoch that does not fill a global batch.
        counts: ``"equal"``: all ranks get as many samples. ``"uneven"``: one or more each, which
            balances better when samples are few or lengths vary much; losses must then be
            multiplied by :meth:`loss_weight`.
        max_tokens_per_rank: A bound on the sum of a rank's lengths, for memory.
        cost_model: Maps lengths to costs: :class:`Linear`, :class:`Quadratic`, or a function from
            float64 arrays of shape ``[n]`` to arrays of that shape. None: :class:`Linear`.
        group: The ranks that share the data; None: the default group, if there is one.
        check_ranks: Whether to compare data and settings over ``group`` before the first batch,
            and again after ``load_state_dict``, if there is a group. Then all its members must
            iterate.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range; a length is negative or not finite; there are
            fewer samples than ranks or, with ``drop_last``, than a global batch has.

    Example:
        >>> sampler = BalancedBatchSampler(lengths, 128, cost_model=Quadratic(1, 1 / 1024))
        >>> loader = DataLoader(dataset, batch_sampler=sampler, num_workers=4)
        >>> for epoch in range(epochs):
        ...     sampler.set_epoch(epoch)
        ...     for batch in loader:
        ...         train_step(batch)
    """

    def __init__(
        self,
        lengths: Lengths,
        batch_size: int,
        *,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        counts: Literal["equal", "uneven"] = "equal",
        max_tokens_per_rank: int | None = None,
        cost_model: CostModel | None = None,
        group: dist.ProcessGroup | None = None,
        check_ranks: bool = True,
    ) -> None:
        self._world_size, self._rank = _place(num_replicas, rank, group)
        self._batch_size = _in_range("batch_size", batch_size, 1)
        if counts not in ("equal", "uneven"):
            raise ValueError(f"counts must be 'equal' or 'uneven', got {counts!r}")
        self._equal_counts = counts == "equal"
        self._max_tokens = max_tokens_per_rank
        if max_tokens_per_rank is not None:
            self._max_tokens = _in_range("max_tokens_per_rank", max_tokens_per_rank, 1)
        self._cost_model: CostModel = Linear() if cost_model is None else cost_model
        self._lengths = LengthColumn(lengths)
        self._fingerprint = self._lengths.fingerprint()
        self._order = EpochOrder(
            samples=len(self._lengths),
            global_batch=self._batch_size * self._world_size,
            shuffle=bool(shuffle),
            drop_last=bool(drop_last),
            seed=_in_range("seed", seed, 0),
        )
        self._check_size()
        self._group = group
        self._compares = bool(check_ranks)
        self._must_compare = self._compares
        self._has_warned = False
        self._progress = Progress(self._order.steps)
        self._tally = EpochTally(0)
        self._planned: tuple[int, int, GlobalBatch] | None = None
        self._shares: dict[tuple[int, int], tuple[int, int]] = {}  # by epoch and step

    def __len__(self) -> int:
        """Number of steps of an epoch, the same on all ranks."""
        return self._order.steps

    def __iter__(self) -> Iterator[list[int]]:
        """Starts a pass: this rank's batches of the epoch, or of what is left after a resume.

        Raises:
            RanksDisagreeError: With the first batch: ranks were given different data or settings.
            ValueError: With the first batch: the lengths have changed since the sampler was made.
                With the batch concerned: a length or cost is impossible, or no assignment keeps to
                ``max_tokens_per_rank``.
        """
        return _Pass(self)

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        return self._progress.epoch

    @property
    def start_step(self) -> int:
        """Number of the step that the next pass begins with; 0, or more after a resume."""
        return self._progress.start

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next pass; to be called before each one, on all ranks.

        Naming the epoch that a loaded state is in keeps the place in it.

        Raises:
            ValueError: ``epoch`` is negative.
        """
        self._progress.set_epoch(_in_range("epoch", epoch, 0))

    def plan(self, step: int) -> GlobalBatch:
        """Returns the plan of any step of the present epoch, for all ranks.

        Raises:
            IndexError: There is no such step.
            ValueError: As for iteration.
        """
        return self._plan_of(self._progress.epoch, step)

    def real_samples(self, step: int) -> int:
        """Returns how many samples of this rank's batch are no duplicates; they come first.

        Args:
            step: Number of the step in the present epoch.

        Raises:
            IndexError: There is no such step.
        """
        return self._share(step)[0]

    def loss_weight(self, step: int) -> float:
        """Returns the factor for this rank's mean loss that makes DDP's average exact.

        ``W·n_r/N`` for ``n_r`` real samples on this one of ``W`` ranks and ``N`` on all: averaged
        over the ranks, as DDP does with gradients, the weighted means over the real samples give
        the mean over the global batch. It is 1 for whole batches with equal counts, and 0 for a
        rank that has duplicates only.

        Args:
            step: Number of the step in the present epoch. Iteration does not imply it, since a
                DataLoader with workers asks for batches long before they are trained on.

        Raises:
            IndexError: There is no such step.
        """
        own, everyones = self._share(step)
        return self._world_size * own / everyones

    def stats(self) -> EpochBalance:
        """Returns imbalance before and after, and the least possible, of this pass's batches."""
        return self._tally.total()

    def workload(self) -> Workload:
        """Returns what is dealt out, in few numbers; sorts the lengths, or a million of them."""
        return Workload(self._batch_size, quantiles(self._lengths), self._cost_model)

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """Returns where the epoch stands, to go on from there with ``load_state_dict``.

        It is the same on all ranks, and small.

        Args:
            step: Number of steps of this epoch that are trained on. None: of batches handed out,
                which is the same unless a DataLoader with workers fetches ahead; torchdata's
                StatefulDataLoader takes care of that by itself.

        Raises:
            ValueError: ``step`` is out of range.
        """
        done = self._progress.done if step is None else _in_range("step", step, 0, len(self))
        place = {"epoch": self._progress.epoch, "step": done}
        return {**self._identity(), "seed": self._order.seed, **place}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where ``state_dict`` was called, in constant time, and with its seed.

        The number of ranks may have changed if ``batch_size`` makes up for that. If the state's
        epoch is over, an epoch that ``set_epoch`` has named for the next pass stays.

        Raises:
            ValueError: The state is of another version, other data, another global batch or
                another order; the message names both values.
        """
        for name, value in self._identity().items():
            if state.get(name) != value:
                raise ValueError(
                    f"this state belongs to another run: its {name.replace('_', ' ')} is"
                    f" {state.get(name)}, this sampler's is {value}"
                )
        epoch = _in_range("epoch of the state", state.get("epoch"), 0)
        step = _in_range("step of the state", state.get("step"), 0, len(self))
        seed = _in_range("seed of the state", state.get("seed"), 0)
        self._order = dataclasses.replace(self._order, seed=seed)
        self._progress.load(epoch, step)
        self._planned = None
        self._shares.clear()
        self._must_compare = self._compares

    def _identity(self) -> dict[str, Any]:
        """What must not change while an epoch is interrupted."""
        return {
            "version": _STATE_VERSION,
            "dataset_length": self._order.samples,
            "lengths_digest": self._fingerprint.digest,
            "global_batch": self._order.global_batch,
            "shuffle": self._order.shuffle,
            "drop_last": self._order.drop_last,
        }

    def _check_size(self) -> None:
        samples, whole = self._order.samples, self._order.global_batch
        if samples < self._world_size:
            raise ValueError(f"{samples} samples are too few for {self._world_size} ranks")
        if self._order.steps == 0:
            raise ValueError(
                f"{samples} samples do not fill a global batch of {self._world_size} ranks ×"
                f" {self._batch_size} = {whole}, and drop_last drops the rest: no steps"
            )

    def _plan_of(self, epoch: int, step: int) -> GlobalBatch:
        if self._planned is None or self._planned[:2] != (epoch, step):
            self._planned = (epoch, step, self._make_plan(epoch, step))
        return self._planned[2]

    def _make_plan(self, epoch: int, step: int) -> GlobalBatch:
        indices = self._order.indices(epoch, step)
        try:
            lengths = self._lengths.gather(indices)
            costs = evaluate(self._cost_model, lengths, indices)
            return plan_global_batch(
                indices,
                costs,
                self._world_size,
                equal_counts=self._equal_counts,
                tokens=None if self._max_tokens is None else lengths,
                max_tokens_per_rank=self._max_tokens,
            )
        except ValueError as error:
            raise ValueError(f"step {step} of epoch {epoch}: {error}") from error

    def _share(self, step: int) -> tuple[int, int]:
        """Returns how many samples of a step are real, on this rank and on all."""
        if self._equal_counts and self._order.is_whole(step):
            return self._batch_size, self._order.global_batch
        key = (self._progress.epoch, step)
        if key not in self._shares:
            self._remember_share(*key, self.plan(step))
        return self._shares[key]

    def _remember_share(self, epoch: int, step: int, batch: GlobalBatch) -> None:
        """Spares a second plan when a loader fetches batches ahead."""
        if len(self._shares) >= _REMEMBERED_SHARES:
            del self._shares[next(iter(self._shares))]  # the oldest
        self._shares[epoch, step] = (batch.real_samples_of(self._rank), batch.real)

    def _begin_pass(self) -> tuple[int, int]:
        """Returns epoch and first step of a pass.

        Called when its first batch is asked for, not before: loaders make passes that they do not
        use.
        """
        if self._must_compare and dist.is_available() and dist.is_initialized():
            check_agreement(
                "the ranks' samplers", self._facts, self._rank, self._world_size, self._group
            )
        else:
            self._check_unchanged()
        self._must_compare = False
        self._tally = EpochTally(self._progress.epoch)
        return self._progress.epoch, self._progress.begin()

    def _check_unchanged(self) -> None:
        now = self._lengths.fingerprint()
        if now != self._fingerprint:
            raise ValueError(
                f"the lengths have changed since the sampler was made: {self._fingerprint} then,"
                f" {now} now; make a new sampler for new lengths"
            )

    def _facts(self) -> dict[str, object]:
        """What must be the same on all ranks, by the names that messages use."""
        self._check_unchanged()
        places = self._lengths.sample()
        costs = evaluate(self._cost_model, self._lengths.gather(places), places)
        return {
            "number of ranks": self._world_size,
            "lengths": str(self._fingerprint),
            "digest of the costs": hashlib.blake2b(costs.tobytes(), digest_size=8).hexdigest(),
            "batch size": self._batch_size,
            "shuffle": self._order.shuffle,
            "seed": self._order.seed,
            "drop_last": self._order.drop_last,
            "counts": "equal" if self._equal_counts else "uneven",
            "max_tokens_per_rank": self._max_tokens,
            "epoch": self._progress.epoch,
            "first step": self._progress.start,
        }

    def _hand_out(self, epoch: int, step: int) -> list[int]:
        batch = self._plan_of(epoch, step)
        self._remember_share(epoch, step, batch)
        self._progress.hand_out(epoch, step)
        self._tally.add(batch.balance)
        self._warn_once(epoch, step, batch)
        return batch.samples_of(self._rank)

    def _warn_once(self, epoch: int, step: int, batch: GlobalBatch) -> None:
        # The rest of an epoch may be dominated whenever it is small.
        quiet = self._has_warned or self._rank != 0 or not self._order.is_whole(step)
        if quiet or batch.balance.floor < _DOMINATED:
            return
        self._has_warned = True
        place = int(batch.costs.argmax())
        warnings.warn(
            f"step {step} of epoch {epoch}: sample {batch.indices[place]} costs"
            f" {batch.costs[place]:g}, but the mean load of a rank is {batch.balance.mean_load:g}."
            f" In any assignment its rank takes {batch.balance.floor:.2f} times the mean and the"
            " others wait. Cap the length, split the sample, or make the global batch larger.",
            stacklevel=4,
        )


class _Pass(Iterator[list[int]]):
    """One iteration.

    It can be saved and loaded like the sampler: when StatefulDataLoader resumes after the end of an
    epoch, it loads one pass, finds it at its end, and iterates over another.
    """

    def __init__(self, sampler: BalancedBatchSampler) -> None:
        self._sampler = sampler
        self._place: tuple[int, int] | None = None  # epoch and next step; None: not begun

    def __next__(self) -> list[int]:
        if self._place is None:
            self._place = self._sampler._begin_pass()
        epoch, step = self._place
        if step >= len(self._sampler):
            raise StopIteration
        self._place = (epoch, step + 1)
        return self._sampler._hand_out(epoch, step)

    def state_dict(self) -> dict[str, Any]:
        return self._sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._sampler.load_state_dict(state)
        self._place = self._sampler._progress.end_of_epoch()


def _place(
    num_replicas: int | None, rank: int | None, group: dist.ProcessGroup | None
) -> tuple[int, int]:
    """Returns the number of ranks and the own rank."""
    if num_replicas is None or rank is None:
        if not (dist.is_available() and dist.is_initialized()):
            raise ValueError(
                "without a process group num_replicas and rank must be given; make the sampler"
                " after init_process_group, or pass num_replicas=1, rank=0 to train alone"
            )
        num_replicas = dist.get_world_size(group) if num_replicas is None else num_replicas
        rank = dist.get_rank(group) if rank is None else rank
    world_size = _in_range("num_replicas", num_replicas, 1)
    return world_size, _in_range("rank", rank, 0, world_size - 1)


def _in_range(name: str, value: Any, least: int, most: int = (1 << 63) - 1) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {value!r}") from None
    if not least <= number <= most:
        bounds = f"{least} or more" if most == (1 << 63) - 1 else f"{least} … {most}"
        raise ValueError(f"{name} must be {bounds}, got {number}")
    return number
