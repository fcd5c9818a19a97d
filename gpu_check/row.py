"""A question to the machine."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from gpu_check.machine import Machine

SOURCES = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Row:
    """One question, what its answer decides, and the program that asks it.

    Args:
        name: ``group.question``.
        asks: The question.
        decides: What is done, or chosen, by the answer.
        program: The probe (an executable of ``tests/gpu``) or, with ``on_torch``, the module of
            ``gpu_check.ranks``, and its arguments.
        on_torch: Runs as ranks of torch, not as a probe of the driver.
        devices: GPUs that it needs.
        ranks: With ``on_torch``, the least number of them; as many as GPUs, if those are more.
        limit: Seconds after which it counts as hung.
        environment: Variables that are set for it.
    """

    name: str
    asks: str
    decides: str
    program: tuple[str, ...]
    on_torch: bool = False
    devices: int = 1
    ranks: int = 2
    limit: float = 120.0
    environment: dict[str, str] = field(default_factory=dict)

    def command(self, machine: Machine) -> list[str]:
        """The command that asks the question; to be run in the root of the sources."""
        name, *arguments = self.program
        short = ["--short"] if machine.rehearsal else []
        if not self.on_torch:
            return [str(machine.probes / f"{name}_probe"), *arguments, *short]
        # Ranks may share a device, but then NCCL, which refuses that, cannot be compared with.
        ranks = self.ranks if machine.rehearsal else max(self.ranks, min(machine.devices, 8))
        command = [sys.executable, "-m", "gpu_check.ranks", name, *arguments, f"--ranks={ranks}"]
        return [*command, f"--device={'cpu' if machine.rehearsal else 'cuda'}", *short]

    def missing(self, machine: Machine) -> str | None:
        """What the machine lacks for this row, or None."""
        if machine.rehearsal:
            return None
        if machine.devices < self.devices:
            return f"needs {self.devices} GPUs, there are {machine.devices}"
        if self.on_torch and not machine.torch_cuda:
            return "needs a torch with CUDA"
        return None
