"""Whether the example trains on GPUs as it does on the CPU."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch

from gpu_check.ranks.setting import Setting
from gpu_check.row import SOURCES

# Its package is beside the script that uses it.
sys.path.append(str(SOURCES / "examples"))
if TYPE_CHECKING:
    from seqrec.dataset import SequenceData
    from seqrec.settings import Settings

# Sums in another order, which Adam turns into a little more.
_TOLERANCE = 1e-3
_OPTIONS = ("--batch-size=12", "--max-length=30", "--negatives=50")


def _data() -> SequenceData:
    from seqrec.dataset import from_interactions
    from seqrec.synthetic import SyntheticSpec, generate

    return from_interactions(
        "synthetic", generate(SyntheticSpec(users=60, items=120, median_length=15.0))
    )


def _train(
    settings: Settings, data: SequenceData, device: torch.device
) -> tuple[list[float], float]:
    """The loss of each epoch, and NDCG after them; collective."""
    from seqrec.train import Trainer

    trainer = Trainer(settings, data, device)
    losses = [trainer.epoch(number, lambda: None).loss for number in range(1, settings.epochs + 1)]
    return losses, trainer.evaluate(data.test(settings.max_length)).ndcg


def run(setting: Setting) -> None:
    """Tells how both learn, and whether they do alike."""
    from seqrec.settings import parse

    epochs = f"--epochs={2 if setting.short else 5}"
    for overlap in ("--overlap", "--no-overlap"):
        settings, data = parse([*_OPTIONS, epochs, overlap]), _data()
        on_cpu, ndcg_on_cpu = _train(settings, data, torch.device("cpu"))
        losses, ndcg = _train(settings, data, setting.device)
        for epoch, (loss, cpu) in enumerate(zip(losses, on_cpu, strict=True), start=1):
            setting.fact(f"{overlap}: loss of epoch {epoch}", loss)
            setting.fact(f"{overlap}: loss of epoch {epoch}, on the CPU", cpu)
        setting.fact(f"{overlap}: NDCG@10", ndcg)
        setting.fact(f"{overlap}: NDCG@10, on the CPU", ndcg_on_cpu)
        pairs = zip(losses, on_cpu, strict=True)
        close = all(abs(loss - cpu) <= _TOLERANCE * cpu for loss, cpu in pairs)
        setting.expect(f"{overlap}: losses are those on the CPU", close)
        setting.expect(f"{overlap}: the loss falls", losses[-1] < losses[0])
