"""Starts the ranks of a program, and is one."""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from freescale_pg import Options

_POLL_SECONDS = 0.05


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m gpu_check.ranks")
    parser.add_argument("programs", nargs="+", help="modules of gpu_check.ranks, one after another")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--zero-cta", action="store_true")
    parser.add_argument(
        "--reductions", choices=["exchange", "nccl"], help="who combines CUDA tensors of the group"
    )
    parser.add_argument("--rank", type=int, help="set for the ranks that it starts")
    parser.add_argument("--store", type=Path, help="set for the ranks that it starts")
    return parser.parse_args(arguments)


def _start_ranks(arguments: Sequence[str], ranks: int) -> int:
    """The first status of a rank that is not 0, or 0. One that fails ends all."""
    with tempfile.TemporaryDirectory() as folder:
        # The store's own file; each rank finds the others by it.
        own = [f"--store={folder}/store"]
        command = [sys.executable, "-m", "gpu_check.ranks", *arguments, *own]
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        processes = [
            subprocess.Popen([*command, f"--rank={rank}"], env=environment) for rank in range(ranks)
        ]
        try:
            return _await(processes)
        finally:
            for process in processes:
                process.kill()
                process.wait()


def _await(processes: list[subprocess.Popen[bytes]]) -> int:
    while True:
        statuses = [process.poll() for process in processes]
        for status in statuses:
            if status is not None and status != 0:
                return status if status > 0 else 128 - status
        if None not in statuses:
            return 0
        time.sleep(_POLL_SECONDS)


def _group_options(options: argparse.Namespace) -> Options | None:
    """None: as the backend chooses. CPU tensors are combined by exchanges in any case."""
    import freescale_pg as fs

    # Without a GPU it is an error to ask for NCCL.
    if options.reductions is None or (options.device == "cpu" and options.reductions == "nccl"):
        return None
    return fs.Options(reductions=options.reductions)


def _be_rank(options: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    from gpu_check.ranks.setting import Setting

    device = torch.device("cpu")
    if options.device == "cuda":
        device = torch.device("cuda", options.rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group(
        "freescale",
        init_method=f"file://{options.store}",
        rank=options.rank,
        world_size=options.ranks,
        pg_options=_group_options(options),
    )
    judges = dist.new_group(backend="gloo")
    assert isinstance(judges, dist.ProcessGroup)
    setting = Setting(
        options.rank,
        options.ranks,
        device,
        judges,
        options.short,
        options.zero_cta,
        by_nccl=options.reductions == "nccl" and options.device == "cuda",
    )
    for program in options.programs:
        importlib.import_module(f"gpu_check.ranks.{program}").run(setting)
        setting.synchronize()
    dist.barrier()
    dist.destroy_process_group()


def main(arguments: Sequence[str]) -> int:
    """Runs as the parent of the ranks or, with ``--rank``, as one of them."""
    options = _parse(arguments)
    if options.rank is None:
        return _start_ranks(arguments, options.ranks)
    _be_rank(options)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
