"""Trains the model: what one step does, what an epoch does, and which state is kept."""

import copy
import hashlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import freescale_pg as fs
from freescale_pg.balance import EpochBalance
from freescale_pg.embedding import Adam
from freescale_pg.observe import RunRecorder
from seqrec.batches import Batches, PackedBatch
from seqrec.dataset import Example, SequenceData
from seqrec.evaluate import Metrics, evaluate_model
from seqrec.interactions import DataError
from seqrec.loss import draw_negatives, sampled_softmax_loss
from seqrec.model import PackedLayout, SequenceModel
from seqrec.settings import Settings

# The part of all steps in which the learning rate rises: Adam's first estimates are poor.
_WARM_UP = 0.05
_BETAS = (0.9, 0.98)
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class EpochResult:
    """What an epoch did, over all ranks.

    Attributes:
        loss: Mean loss per target, in nats.
        samples: Number of user sequences.
        tokens: Number of targets.
        seconds: Wall time.
    """

    loss: float
    samples: int
    tokens: int
    seconds: float


@dataclass(frozen=True)
class _Step:
    """What a step trains on.

    Attributes:
        number: From 0, over all epochs.
        batch: This rank's share of the global batch.
        negatives: Ascending ids, the same on every rank; int64.
    """

    number: int
    batch: PackedBatch
    negatives: Tensor

    @property
    def ids(self) -> Tensor:
        """All that is looked up; inputs, targets and negatives share most of their ids."""
        return torch.cat([self.batch.items, self.batch.targets, self.negatives])


class Trainer:
    """Owns the model, the table and their optimizers on one rank.

    All ranks together take the same steps as one rank would alone: batches, negatives, dropout
    masks and initial values depend on the seed and not on the number of ranks, and losses are
    weighted so that gradients are those of the mean over the global batch. What differs is the
    rounding of sums.
    """

    def __init__(self, settings: Settings, data: SequenceData, device: torch.device = _CPU) -> None:
        """Builds model and table; collective.

        Args:
            settings: Of the run.
            data: On the CPU, the same on all ranks.
            device: Where this rank computes.

        Raises:
            DataError: There are fewer users, or users per step, than ranks.
        """
        self._world_size = dist.get_world_size()
        users = len(data.histories)
        if users < self._world_size:
            raise DataError(f"{self._world_size} ranks cannot share {users} users")
        self._settings = settings
        self._device = device
        self._num_items = data.num_items
        self._batches = Batches(
            data.training(settings.max_length),
            settings.batch_size,
            rank=dist.get_rank(),
            world_size=self._world_size,
            seed=self._seed(1),
            dim=settings.dim,
            balance=settings.balance,
        )
        self._steps_done = 0
        torch.manual_seed(settings.seed)
        self.model = SequenceModel(
            settings.dim, settings.layers, settings.heads, settings.max_length, settings.dropout
        ).to(device)
        self._table_optimizer = Adam(settings.lr, _BETAS)
        self.table = fs.ShardedEmbedding(
            data.num_items,
            settings.dim,
            optimizer=self._table_optimizer,
            std=0.02,
            seed=settings.seed,
            device=device,
        )
        self._parallel_model = DistributedDataParallel(
            self.model, device_ids=None if device.type == "cpu" else [device]
        )
        self._optimizer = torch.optim.Adam(self.model.parameters(), settings.lr, _BETAS)

    @property
    def total_steps(self) -> int:
        """Number of steps of the whole training."""
        steps = self._settings.epochs * len(self._batches)
        limit = self._settings.max_steps
        return steps if limit is None else min(steps, limit)

    @property
    def finished(self) -> bool:
        """Whether all steps are taken."""
        return self._steps_done >= self.total_steps

    @property
    def sampler(self) -> fs.BalancedBatchSampler:
        """What deals users out, if they are balanced."""
        return self._batches.sampler

    def epoch(
        self, number: int, on_step: Callable[[], None], recorder: RunRecorder | None = None
    ) -> EpochResult:
        """Trains on every user once, or up to the limit on steps; collective.

        Args:
            number: Number of the epoch; seeds its order.
            on_step: Called after each step.
            recorder: Of the steps; None: they are not recorded.
        """
        start = time.perf_counter()
        # On the device, since bringing a step's loss to the CPU would wait for the step.
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        samples, tokens = 0, 0
        batches = self._steps(number)
        with fs.OverlapPipeline(
            self._model,
            self._optimizer,
            batches if recorder is None else recorder.loader(batches),
            embedding=self.table,
            ids_of=lambda step: step.ids,
            overlap=self._settings.overlap,
        ) as pipeline:
            self._set_learning_rate()
            for result in pipeline if recorder is None else recorder.steps(pipeline):
                total += result["loss_sum"]
                samples += result["samples"]
                tokens += result["targets"]
                self._steps_done += 1
                self._set_learning_rate()
                on_step()
        total = total.cpu()
        dist.all_reduce(total)
        return EpochResult(float(total) / tokens, samples, tokens, time.perf_counter() - start)

    def evaluate(self, examples: list[Example]) -> Metrics:
        """Evaluates the present state; collective."""
        return evaluate_model(self.model, self.table, examples, 2 * self._settings.batch_size)

    def imbalance(self) -> EpochBalance:
        """Returns how unequal the ranks' shares of the last epoch are, balanced and not."""
        return self._batches.imbalance()

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns a copy of the weights that this rank holds."""
        table = self.table.state_dict()
        return copy.deepcopy(self.model.state_dict()), {key: _copy(table[key]) for key in table}

    def restore(self, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
        """Takes back what ``state`` returned."""
        self.model.load_state_dict(state[0])
        self.table.load_state_dict(state[1])

    def _steps(self, epoch: int) -> Iterator[_Step]:
        """Yields what the steps of an epoch train on, up to the limit on steps."""
        left = self.total_steps - self._steps_done
        batches = islice(self._batches.epoch(epoch), left)
        for number, batch in enumerate(batches, start=self._steps_done):
            generator = torch.Generator().manual_seed(self._seed(2, number))
            negatives = draw_negatives(self._num_items, self._settings.negatives, generator)
            yield _Step(number, batch.to(self._device), negatives.to(self._device))

    def _model(self, step: _Step) -> dict[str, Any]:
        """Computes the loss of a step, and what is counted of it."""
        batch = step.batch
        loss_sum = self._loss_sum(step) * batch.counts
        return {
            # DDP and the table average gradients over ranks: W * sum_r / N makes that the mean over
            # all N targets.
            "loss": loss_sum * (self._world_size / batch.global_targets),
            "loss_sum": loss_sum,
            "samples": batch.global_examples,
            "targets": batch.global_targets,
        }

    def _loss_sum(self, step: _Step) -> Tensor:
        batch, tokens = step.batch, len(step.batch.items)
        vectors = self.table(step.ids)
        inputs, targets, drawn = vectors.split([tokens, tokens, len(step.negatives)])
        seeds = [self._seed(3, step.number, example.user) for example in batch.examples]
        predictions = self._parallel_model(inputs, PackedLayout(batch.lengths, self._device), seeds)
        return sampled_softmax_loss(
            predictions, targets, batch.targets, drawn, step.negatives, self._num_items
        )

    def _seed(self, *index: int) -> int:
        """Derives a seed for one of many independent uses."""
        text = ",".join(str(part) for part in (self._settings.seed, *index))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")

    def _set_learning_rate(self) -> None:
        """Rises linearly over the first steps, then falls to zero along half a cosine."""
        done = self._steps_done / self.total_steps
        warm_up = min(1.0, (done + 1 / self.total_steps) / _WARM_UP)
        rate = self._settings.lr * warm_up * 0.5 * (1 + math.cos(math.pi * done))
        self._table_optimizer.lr = rate
        for group in self._optimizer.param_groups:
            group["lr"] = rate


def _copy(value: Any) -> Any:
    """Copies what a table's state holds.

    Not by operations of DTensor: torch remembers the mesh of each operand, and so keeps the group.
    """
    if not isinstance(value, DTensor):
        return copy.deepcopy(value)
    return DTensor.from_local(
        value.to_local().clone(),
        value.device_mesh,
        value.placements,
        run_check=False,
        shape=value.shape,
        stride=value.stride(),
    )
