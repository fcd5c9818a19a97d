"""A training of the cited machine, scaled down to one on which sleeps stand for computing.

The machine and the training are those of ``docs/simulation.md``: 8 blocks of HSTU of width 1024 on
GPUs that reach 220 teraflops, hosts of 8 GPUs with a card each. A rank here stands for one GPU and
its card. Time is stretched and bytes are thinned, both by one factor for everything, so that all
ratios of computing to bytes over a link's rate are those of the machine:

- *stretch*: a step computes ``compute_seconds`` on average here;
- *thinning*: a link of ``link_bytes_per_second`` carries in the stretched time what the card
  carries in its own: link · stretch = card · thinning. So only so many rows are looked up for each
  token, and the dense gradients are so much smaller.

Lengths and samples are not scaled, nor is what they cost in proportion to each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from torch.utils.data import DataLoader, DistributedSampler

import freescale_pg as fs
from freescale_pg.balance import Quadratic
from freescale_pg.bench.timed_training import Computing, TimedBatch, Work, changing_ids
from freescale_pg.simulate.cluster import Cluster
from freescale_pg.simulate.lengths import LengthDistribution, Zipf
from freescale_pg.simulate.load import Sizes
from freescale_pg.simulate.scenario import Scenario, StepCost
from freescale_pg.simulate.transformer import Transformer

# docs/simulation.md, "Parameters", has the sources of all of them.
_TRANSFORMER = Transformer(8, 1024, 220e12, 3.35e12)
_COST = Quadratic(_TRANSFORMER.token_seconds, _TRANSFORMER.pair_seconds)
_ZIPF = Zipf(1.2, 4096)
_GPUS_OF_A_HOST = 8
_BUCKET_BYTES = 25e6
_NVLINK_BYTES_PER_SECOND = 450e9
_FORWARD, _BACKWARD = 1 / 3, 2 / 3
_FLOAT32_BYTES, _ROW_NUMBER_BYTES = 4, 4
# Rows of a rank's table, as a multiple of those of the dearest batch: none may come back while the
# batch before has it.
_POOL = 4


@dataclass(frozen=True)
class Emulation:
    """What is trained, on what machine, and how it is scaled down.

    Attributes:
        ranks: World size.
        samples_per_rank: In each step.
        lengths: Where the samples' lengths are drawn from.
        shared: Part of a batch's rows that the batch before had too, 0 to 1.
        card_bytes_per_second: Of the machine's cards.
        link_bytes_per_second: Of the emulated links.
        compute_seconds: That a rank computes in a step here, on average.
        batches: Global batches in all.
        dim: Length of a row; float32.
        seed: Of the lengths.

    Raises:
        ValueError: A number is out of range.
    """

    ranks: int
    samples_per_rank: int = 32
    lengths: LengthDistribution = _ZIPF
    shared: float = 0.3
    card_bytes_per_second: float = 12.5e9
    link_bytes_per_second: float = 20e6
    compute_seconds: float = 1.0
    batches: int = 24
    dim: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("ranks", "samples_per_rank", "batches", "dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}")
        for name in ("card_bytes_per_second", "link_bytes_per_second", "compute_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if not 0 <= self.shared <= 1:
            raise ValueError(f"shared must be between 0 and 1, got {self.shared}")

    @cached_property
    def drawn(self) -> npt.NDArray[np.int64]:
        """Lengths of all samples; shape ``[batches · global batch]``."""
        global_batch = self.ranks * self.samples_per_rank
        return self.lengths.draw(self.batches * global_batch, self.seed)

    @property
    def cited_seconds(self) -> float:
        """That a rank of the machine computes in a step, on average."""
        whole = float(_COST(self.drawn.astype(np.float64)).sum())
        return whole / (self.ranks * self.batches) + _TRANSFORMER.optimizer_seconds

    @cached_property
    def stretch(self) -> float:
        """How much longer everything takes here."""
        return self.compute_seconds / self.cited_seconds

    @property
    def thinning(self) -> float:
        """Bytes here for each byte of the machine."""
        return self.link_bytes_per_second * self.stretch / self.card_bytes_per_second

    @property
    def buckets(self) -> tuple[int, ...]:
        """Elements of each bucket of dense gradients here.

        The cards of a host share the sum over hosts, so each carries an eighth of the gradients.
        """
        count = round(_TRANSFORMER.gradient_bytes / _BUCKET_BYTES)
        share = _TRANSFORMER.gradient_bytes / _GPUS_OF_A_HOST * self.thinning
        return (max(1, round(share / count / _FLOAT32_BYTES)),) * count

    def computing(self, samples: npt.NDArray[np.int64]) -> Computing:
        """Returns what a rank computes here for its samples, given by their places."""
        cost = self.stretch * float(_COST(self.drawn[samples].astype(np.float64)).sum())
        return Computing(
            _FORWARD * cost, _BACKWARD * cost, self.stretch * _TRANSFORMER.optimizer_seconds
        )

    def rows(self, samples: npt.NDArray[np.int64]) -> int:
        """Returns how many rows a rank looks up here for its samples; at least one."""
        return max(1, round(self.thinning * float(self.drawn[samples].sum())))

    def with_batches(self, batches: int) -> Emulation:
        """Returns the same with another number of batches."""
        return replace(self, batches=batches)

    def scenario(self, slowdown: float, steps: int) -> Scenario:
        """Returns the machine's training as ``freescale simulate`` describes it, unscaled.

        Args:
            slowdown: By what part computing takes longer while communicating.
            steps: To simulate.
        """
        warm_up = 4
        drawn = self.with_batches(steps + warm_up).drawn
        bucket = _TRANSFORMER.gradient_bytes / _GPUS_OF_A_HOST / len(self.buckets)
        return Scenario(
            # One GPU of each host.
            Cluster(self.ranks, 1, _NVLINK_BYTES_PER_SECOND, self.card_bytes_per_second),
            Sizes(self.dim * _FLOAT32_BYTES, _ROW_NUMBER_BYTES, (bucket,) * len(self.buckets)),
            StepCost(_COST.a, _COST.b, _TRANSFORMER.optimizer_seconds),
            drawn,
            self.samples_per_rank,
            self.shared,
            1.0,
            slowdown,
            steps,
            warm_up,
            self.seed,
        )


class Feed:
    """The batches of one rank, by a real sampler and loader.

    The data set is drawn at random, so it is not shuffled again; then the samplers deal the same
    global batches out, each in its way.

    Attributes:
        samples: Places of the samples of each batch that was asked for, in order.
    """

    def __init__(self, emulation: Emulation, rank: int, *, is_balanced: bool) -> None:
        self.samples: list[npt.NDArray[np.int64]] = []
        self._emulation = emulation
        self._rank = rank
        self._is_balanced = is_balanced

    def work(self) -> Work:
        """Returns what the rank trains on."""
        emulation = self._emulation
        in_turn = emulation.drawn.reshape(-1, emulation.samples_per_rank, emulation.ranks)
        most_tokens = float(in_turn.sum(axis=1).max())
        pool = _POOL * max(1, round(emulation.thinning * most_tokens))
        batches = self._batches(pool)
        return Work(emulation.ranks * pool, emulation.dim, batches, emulation.buckets)

    def _batches(self, pool: int) -> Iterator[TimedBatch]:
        emulation = self._emulation
        for ids in changing_ids(self._counts(pool), pool, self._rank):
            yield TimedBatch(ids, emulation.computing(self.samples[-1]))

    def _counts(self, pool: int) -> Iterator[tuple[int, int]]:
        before = 0
        for samples in self._loader():
            self.samples.append(samples)
            rows = self._emulation.rows(samples)
            if rows + before > pool:
                raise ValueError(f"{before} and then {rows} rows do not fit into {pool}")
            yield rows, min(round(self._emulation.shared * rows), before)
            before = rows

    def _loader(self) -> DataLoader[int]:
        emulation = self._emulation
        places = range(len(emulation.drawn))
        if self._is_balanced:
            balanced = fs.BalancedBatchSampler(
                emulation.drawn,
                emulation.samples_per_rank,
                num_replicas=emulation.ranks,
                rank=self._rank,
                shuffle=False,
                drop_last=True,
                cost_model=_COST,
            )
            return DataLoader(places, batch_sampler=balanced, collate_fn=np.array)  # type: ignore[arg-type]
        in_turn: DistributedSampler[int] = DistributedSampler(
            places,  # type: ignore[arg-type]
            emulation.ranks,
            self._rank,
            shuffle=False,
            drop_last=True,
        )
        return DataLoader(
            places,  # type: ignore[arg-type]
            emulation.samples_per_rank,
            sampler=in_turn,
            drop_last=True,
            collate_fn=np.array,
        )
