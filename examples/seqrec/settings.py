"""What a run can be told, and the command line that tells it."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch

# Beside examples/, wherever the program is started.
_CACHE = Path(__file__).resolve().parents[2] / ".cache"


@dataclass(frozen=True)
class Settings:
    """Settings of a run; ``parse`` describes them."""

    data: str
    backend: str
    device: str
    cache: Path
    run_dir: Path | None
    seed: int
    epochs: int
    max_steps: int | None
    batch_size: int
    balance: bool
    overlap: bool
    max_length: int
    dim: int
    layers: int
    heads: int
    dropout: float
    negatives: int
    lr: float


def parse(arguments: Sequence[str] | None = None) -> Settings:
    """Parses the command line; ends the program with a usage message if a value is wrong."""
    parser = argparse.ArgumentParser(
        description="Trains a self-attentive next-item model with a sharded item table. "
        "Run it under torchrun for several ranks, or plainly for one.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _add_run_options(parser)
    _add_model_options(parser)
    parsed = parser.parse_args(arguments)
    if parsed.dim % parsed.heads != 0:
        parser.error(f"--heads {parsed.heads} does not divide --dim {parsed.dim}")
    if not 0 <= parsed.dropout < 1:
        parser.error(f"--dropout must be in [0, 1), got {parsed.dropout}")
    if parsed.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU that it can use")
    return Settings(**{field.name: getattr(parsed, field.name) for field in fields(Settings)})


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--data",
        default="ml-100k",
        help="ml-100k (downloaded), synthetic, or a file: RecBole .inter, "
        "or lines of user item [rating] [timestamp]",
    )
    add(
        "--backend",
        default="freescale",
        help="torch.distributed backend; for CPU tensors, and those of the device",
    )
    add(
        "--device",
        choices=["cpu", "cuda"],
        default="cpu",
        help="where to train; ranks take the GPUs of their host in turn",
    )
    add("--cache", type=Path, default=_CACHE, help="folder that keeps downloads")
    add(
        "--run-dir",
        type=Path,
        default=None,
        help="record the training there, for `freescale report`",
    )
    add("--seed", type=int, default=0, help="seed of weights, batches, negatives and dropout")
    add("--epochs", type=_count, default=30, help="passes over the users")
    add(
        "--balance",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="give ranks shares of a batch that cost alike; else deal users out in turn",
    )
    add(
        "--overlap",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="fetch rows of the next batch, and send gradients of the last one, behind the "
        "computation; the result is the same",
    )
    add("--max-steps", type=_count, default=None, help="stop training after this many steps")


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--batch-size",
        type=_count,
        default=32,
        help="users per step, over all ranks; rounded up to a multiple of their number",
    )
    add("--max-length", type=_count, default=100, help="newest items of a user that are used")
    add("--dim", type=_count, default=64, help="length of an item vector")
    add("--layers", type=_count, default=2, help="attention blocks")
    add("--heads", type=_count, default=2, help="attention heads")
    add("--dropout", type=float, default=0.3, help="probability that a value is dropped")
    add("--negatives", type=_count, default=512, help="negative items per step")
    add("--lr", type=float, default=3e-3, help="peak learning rate of Adam")
