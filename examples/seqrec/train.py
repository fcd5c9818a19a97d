"""Trains the model: what one step does, what an epoch does, and which state is kept."""

import copy
import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from freescale_pg.balance import EpochBalance
from seqrec.batches import Batches, PackedBatch
from seqrec.dataset import Example, SequenceData
from seqrec.evaluate import Metrics, evaluate_model
from seqrec.exchange import Exchange
from seqrec.interactions import DataError
from seqrec.loss import draw_negatives, sampled_softmax_loss
from seqrec.model import PackedLayout, SequenceModel
from seqrec.settings import Settings
from seqrec.sharded_embedding import ShardedEmbedding

# The part of all steps in which the learning rate rises: Adam's first estimates are poor.
_WARM_UP = 0.05


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


class Trainer:
    """Owns the model, the table and their optimizers on one rank.

    All ranks together take the same steps as one rank would alone: batches, negatives, dropout
    masks and initial values depend on the seed and not on the number of ranks, and losses are
    weighted so that gradients are those of the mean over the global batch. What differs is the
    rounding of sums.
    """

    def __init__(self, settings: Settings, data: SequenceData, exchange: Exchange) -> None:
        """Builds model and table; collective.

        Raises:
            DataError: There are fewer users, or users per step, than ranks.
        """
        self._world_size = dist.get_world_size()
        users = len(data.histories)
        if users < self._world_size:
            raise DataError(f"{self._world_size} ranks cannot share {users} users")
        self._settings = settings
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
        )
        self.table = ShardedEmbedding(
            data.num_items, settings.dim, exchange, std=0.02, seed=settings.seed
        )
        self._parallel_model = DistributedDataParallel(self.model)
        self._optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Adam(self.model.parameters(), lr=settings.lr, betas=(0.9, 0.98)),
            torch.optim.SparseAdam(self.table.parameters(), lr=settings.lr, betas=(0.9, 0.98)),
        ]

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

    def epoch(self, number: int, on_step: Callable[[], None]) -> EpochResult:
        """Trains on every user once, or up to the limit on steps; collective.

        Args:
            number: Number of the epoch; seeds its order.
            on_step: Called after each step.
        """
        start = time.perf_counter()
        total, samples, tokens = torch.zeros((), dtype=torch.float64), 0, 0
        for batch in self._batches.epoch(number):
            total += self._step(batch)
            samples += batch.global_examples
            tokens += batch.global_targets
            on_step()
            if self.finished:
                break
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
        return copy.deepcopy(self.model.state_dict()), copy.deepcopy(self.table.state_dict())

    def restore(self, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
        """Takes back what ``state`` returned."""
        self.model.load_state_dict(state[0])
        self.table.load_state_dict(state[1])

    def _step(self, batch: PackedBatch) -> Tensor:
        """Takes one step; returns this rank's sum of losses before the step."""
        loss_sum = self._loss_sum(batch) * batch.counts
        # DDP and the table average gradients over ranks: W * sum_r / N makes that the mean over all
        # N targets.
        loss = loss_sum * (self._world_size / batch.global_targets)
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        loss.backward()
        self._set_learning_rate()
        for optimizer in self._optimizers:
            optimizer.step()
        self._steps_done += 1
        return loss_sum.detach()

    def _loss_sum(self, batch: PackedBatch) -> Tensor:
        generator = torch.Generator().manual_seed(self._seed(2, self._steps_done))
        negatives = draw_negatives(self._num_items, self._settings.negatives, generator)
        # One exchange for all that the step needs: inputs, targets and negatives share most of
        # their ids.
        tokens = len(batch.items)
        vectors = self.table(torch.cat([batch.items, batch.targets, negatives]))
        inputs, targets, drawn = vectors.split([tokens, tokens, len(negatives)])
        seeds = [self._seed(3, self._steps_done, example.user) for example in batch.examples]
        predictions = self._parallel_model(inputs, PackedLayout(batch.lengths), seeds)
        return sampled_softmax_loss(
            predictions, targets, batch.targets, drawn, negatives, self._num_items
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
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
