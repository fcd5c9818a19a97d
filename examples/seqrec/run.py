"""A whole run: process group, data, training, evaluation, report."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

import freescale_pg as fs
from freescale_pg.observe import RunRecorder
from group_end import end_group
from seqrec import dataset
from seqrec.dataset import SequenceData
from seqrec.device import group_options, own_device
from seqrec.evaluate import evaluate_popularity
from seqrec.report import Reporter
from seqrec.settings import Settings
from seqrec.train import EpochResult, Trainer


@dataclass
class _History:
    """What training leaves behind."""

    epochs: list[EpochResult] = field(default_factory=list)
    best_ndcg: float = -1.0

    @property
    def samples_per_second(self) -> float:
        """Speed over all epochs; their evaluation is not in it."""
        return sum(e.samples for e in self.epochs) / sum(e.seconds for e in self.epochs)


def run(settings: Settings) -> None:
    """Runs on every rank; collective. The process group is destroyed whatever happens.

    Raises:
        DataError: The data cannot be used, or hold fewer users than there are ranks.
        OSError: The data file cannot be opened, or the run's directory cannot be used.
    """
    device = own_device(settings.device)
    with _process_group(settings.backend, group_options(settings.backend, device)):
        data, warning = dataset.load(settings.data, settings.cache)
        trainer = Trainer(settings, data, device)
        with Reporter(enabled=dist.get_rank() == 0, total_steps=trainer.total_steps) as reporter:
            _announce(reporter, settings, data, warning)
            fs.reset_stats()
            with _recording(settings, trainer) as recorder:
                history = _train(settings, trainer, data, reporter, recorder)
            reporter.blocked(fs.stats().ops)
            reporter.imbalance(trainer.imbalance(), balanced=settings.balance)
            _conclude(settings, trainer, data, reporter, history)


@contextmanager
def _process_group(backend: str, options: fs.Options | None) -> Iterator[None]:
    """Joins the ranks that torchrun started, or makes a world of one."""
    if "RANK" in os.environ:
        dist.init_process_group(backend, pg_options=options)
    else:
        dist.init_process_group(
            backend, store=dist.HashStore(), rank=0, world_size=1, pg_options=options
        )
    try:
        yield
    except BaseException:
        # Its threads may wait in vain for ranks that have not failed.
        dist.destroy_process_group()
        raise
    end_group()


@contextmanager
def _recording(settings: Settings, trainer: Trainer) -> Iterator[RunRecorder | None]:
    """Records the training where that is asked for."""
    if settings.run_dir is None:
        yield None
        return
    # Without balance its plans are not what the ranks train on.
    sampler = trainer.sampler if settings.balance else None
    with fs.record_run(settings.run_dir, sampler=sampler) as recorder:
        yield recorder


def _announce(
    reporter: Reporter, settings: Settings, data: SequenceData, warning: str | None
) -> None:
    if warning is not None:
        reporter.line(f"WARNING: {warning}")
    lengths = [len(history) for history in data.histories]
    reporter.line(
        f"{data.name}: {len(lengths)} users, {data.num_items} items, {sum(lengths)} interactions, "
        f"longest history {max(lengths)}; {dist.get_world_size()} rank(s) over {settings.backend}"
        f"{' on ' + torch.cuda.get_device_name() if settings.device == 'cuda' else ''}"
    )


def _train(
    settings: Settings,
    trainer: Trainer,
    data: SequenceData,
    reporter: Reporter,
    recorder: RunRecorder | None,
) -> _History:
    """Trains, and leaves the trainer in the state that did best on the validation items."""
    validation = data.validation(settings.max_length)
    history, best_state = _History(), trainer.state()
    for number in range(1, settings.epochs + 1):
        result = trainer.epoch(number, reporter.advance, recorder)
        metrics = trainer.evaluate(validation)
        history.epochs.append(result)
        reporter.epoch(number, result, metrics)
        if recorder is not None:
            recorder.save()
        # The same on every rank, since the metrics are: all ranks keep the same epoch.
        if metrics.ndcg > history.best_ndcg:
            history.best_ndcg, best_state = metrics.ndcg, trainer.state()
        if trainer.finished:
            break
    trainer.restore(best_state)
    return history


def _conclude(
    settings: Settings,
    trainer: Trainer,
    data: SequenceData,
    reporter: Reporter,
    history: _History,
) -> None:
    test = data.test(settings.max_length)
    metrics, popularity = trainer.evaluate(test), evaluate_popularity(test, data.popularity())
    reporter.comparison(metrics, popularity)
    reporter.result(
        ndcg10=metrics.ndcg,
        hr10=metrics.hit_rate,
        pop_ndcg10=popularity.ndcg,
        pop_hr10=popularity.hit_rate,
        samples_per_s=history.samples_per_second,
        loss=history.epochs[-1].loss,
        imbalance=trainer.imbalance().after if settings.balance else trainer.imbalance().before,
        backend=settings.backend,
        world_size=dist.get_world_size(),
        data=data.name,
    )
