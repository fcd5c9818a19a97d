"""What there is to run rows on."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from gpu_check.finding import Fact, parse

_LIMIT = 120.0
# In a process of its own: whoever has made a context must not fork.
_TORCH_FACTS = """
import torch
from torch.distributed import is_nccl_available
print(torch.__version__, torch.cuda.is_available(), is_nccl_available())
"""


class NoMachineError(RuntimeError):
    """The rows cannot be run here at all."""


@dataclass(frozen=True)
class Machine:
    """The driver, its devices, and the torch that is installed.

    Args:
        probes: Folder of the probes' executables.
        stand_in: Path of the stand-in driver in a rehearsal, otherwise None.
        facts: What the probe ``machine`` has told.
        torch: Its version, or why there is none.
        torch_cuda: It finds a GPU.
    """

    probes: Path
    stand_in: Path | None = None
    facts: list[Fact] = field(default_factory=list)
    torch: str = "not asked for"
    torch_cuda: bool = False

    @property
    def rehearsal(self) -> bool:
        """Whether there is a stand-in in the place of the driver."""
        return self.stand_in is not None

    @property
    def devices(self) -> int:
        """How many GPUs there are."""
        return next(int(fact.value) for fact in self.facts if fact.name == "devices")

    def environment(self) -> dict[str, str]:
        """Variables of the processes that run rows."""
        result = dict(os.environ)
        result.pop("FREESCALE_CUDA_DRIVER", None)
        if self.stand_in is not None:
            result["FREESCALE_CUDA_DRIVER"] = str(self.stand_in)
        return result


def look_at_machine(probes: Path, rehearse: bool, with_torch: bool) -> Machine:
    """Asks the driver and, if wanted, torch.

    Raises:
        NoMachineError: There is no driver that works, or the probes were not built.
    """
    stand_in = probes.parent / "fakes" / "cuda_driver" / "libcuda.so.1" if rehearse else None
    machine = Machine(probes, stand_in)
    probe = probes / "machine_probe"
    if not probe.exists():
        raise NoMachineError(f"{probe} was not built")
    answer = _ask([str(probe)], machine.environment())
    if answer.returncode != 0:
        raise NoMachineError(
            f"{answer.stderr.strip()}\nWithout a GPU, REHEARSE=1 tries the suite itself."
        )
    findings = [parse(line) for line in answer.stdout.splitlines()]
    facts = [finding for finding in findings if isinstance(finding, Fact)]
    torch, torch_cuda = _look_at_torch() if with_torch else ("not asked for", False)
    return Machine(probes, stand_in, facts, torch, torch_cuda)


def _ask(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        raise NoMachineError(f"{command[0]} hangs: the driver does not even start") from None


def _look_at_torch() -> tuple[str, bool]:
    answer = _ask([sys.executable, "-c", _TORCH_FACTS], dict(os.environ))
    if answer.returncode != 0:
        return f"none: {answer.stderr.strip().splitlines()[-1]}", False
    version, cuda, nccl = answer.stdout.split()
    return f"{version}, {'with' if nccl == 'True' else 'without'} NCCL", cuda == "True"
