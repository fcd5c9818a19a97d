"""One benchmark from its settings to its files, on ranks of its own or on those of a job."""

from __future__ import annotations

import csv
import json
import os
import pickle
import platform
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from freescale_pg.bench.launch import Module, Program
from freescale_pg.bench.ranks import Ranks, joined, size_of_job, started_as_rank, usable_cores

# What a mode has found, as JSON has it: one for each thing that was measured.
Record = dict[str, Any]

_RANK = Module("freescale_pg.bench")
_MODE_FILE, _RECORDS_FILE = "mode", "records"


class Mode(ABC):
    """A kind of benchmark with its settings: a dataclass of plain values, which ranks are sent.

    Attributes:
        name: The word that chooses it.
    """

    name: ClassVar[str]

    @abstractmethod
    def check(self, world_size: int | None) -> None:
        """Refuses what cannot be measured here, before anything is started.

        Args:
            world_size: Of the job that this process is a rank of; None: there is none.

        Raises:
            ValueError: It names what was asked for and what there is.
        """

    @abstractmethod
    def collect(self) -> list[Record]:
        """Starts ranks, once or more, and returns what they found.

        Raises:
            LaunchError: A rank failed; its own message is on stderr.
        """

    @abstractmethod
    def measure(self, ranks: Ranks) -> list[Record]:
        """Measures on the ranks of this run. A collective call; what rank 0 returns counts."""

    @abstractmethod
    def table(self, records: Sequence[Record]) -> str:
        """What is printed."""

    @abstractmethod
    def lines(self, records: Sequence[Record]) -> list[Record]:
        """The lines of the CSV file: flat, all with the same keys."""

    def results(self, records: Sequence[Record]) -> list[Record]:
        """The results in the JSON file."""
        return list(records)

    def draw(self, records: Sequence[Record]) -> None:
        """Draws what was to be drawn."""
        del records

    def failures(self, records: Sequence[Record]) -> list[str]:
        """A sentence for each thing that failed and was left out."""
        del records
        return []


def check_ranks(asked: Sequence[int] | None, world_size: int | None) -> None:
    """Refuses other world sizes than that of the job.

    Args:
        asked: For the run; None: any.
        world_size: Of the job; None: there is none.

    Raises:
        ValueError: They differ.
    """
    if asked is not None and world_size is not None and list(asked) != [world_size]:
        raise ValueError(f"--ranks {','.join(map(str, asked))}: the job has {world_size} ranks")


@dataclass(frozen=True)
class Outputs:
    """Files for what was found.

    Attributes:
        json: All of it.
        csv: A line for each number.
    """

    json: Path | None = None
    csv: Path | None = None

    def check(self) -> None:
        """Finds out before a long run that a file cannot be written after it.

        Raises:
            OSError: It names the path.
        """
        for path in (self.json, self.csv):
            if path is None:
                continue
            if path.is_dir():
                raise IsADirectoryError(f"{path} is a folder")
            if not os.access(path.parent, os.W_OK | os.X_OK):
                raise FileNotFoundError(f"{path}: {path.parent} is no folder to write to")


def carry_out(mode: Mode, outputs: Outputs) -> int:
    """Measures and publishes: rank 0 of the job in which this process is a rank, else this process.

    Returns:
        The exit status: 1 if something failed and was left out.
    """
    if not started_as_rank():
        mode.check(None)
        outputs.check()
        return _publish(mode, mode.collect(), outputs)
    mode.check(size_of_job())
    with joined() as ranks:
        if ranks.rank == 0:
            outputs.check()
        records = mode.measure(ranks)
    return _publish(mode, records, outputs) if ranks.rank == 0 else 0


def _publish(mode: Mode, records: Sequence[Record], outputs: Outputs) -> int:
    print(mode.table(records))
    failures = mode.failures(records)
    if failures:
        print("\n" + "\n".join(f"FAILED {failure}" for failure in failures))
    if outputs.json is not None:
        write_json(outputs.json, mode, records)
    if outputs.csv is not None:
        write_csv(outputs.csv, mode.lines(records))
    mode.draw(records)
    return int(bool(failures))


def write_json(path: Path, mode: Mode, records: Sequence[Record]) -> None:
    """Writes what was found, with the settings and the machine that it was found on."""
    found = {
        "mode": mode.name,
        "settings": asdict(mode),  # type: ignore[call-overload]
        "machine": machine(),
        "results": mode.results(records),
    }
    path.write_text(json.dumps(found, indent=1, default=str) + "\n")


def read_json(path: Path) -> tuple[str, list[Record]]:
    """Reads what ``write_json`` wrote: the mode's name, and the results.

    Raises:
        ValueError: It is something else.
    """
    found = json.loads(path.read_text())
    if not isinstance(found, dict) or not {"mode", "results"} <= found.keys():
        raise ValueError(f"{path} was not written by freescale bench --json")
    return found["mode"], found["results"]


def write_csv(path: Path, lines: Sequence[Mapping[str, object]]) -> None:
    """Writes one line for each; nothing but an empty file if there are none."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(lines[0]) if lines else [])
        writer.writeheader()
        writer.writerows(lines)


def machine() -> Record:
    """What numbers depend on beside the settings."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        own = version("freescale_pg")
    except PackageNotFoundError:
        own = "not installed"
    return {
        "freescale_pg": own,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": platform.machine(),
        "cores": usable_cores(),
        "load": os.getloadavg()[0],
        "cuda_devices": [
            torch.cuda.get_device_name(device) for device in range(torch.cuda.device_count())
        ],
    }


# --- Ranks of our own ---------------------------------------------------------------------------


def measured_by(mode: Mode, start: Callable[[Program, Sequence[str]], None]) -> list[Record]:
    """What ranks find that are started for it.

    Args:
        mode: What they measure.
        start: Runs a program with arguments as the ranks, and returns when all have ended.
    """
    with tempfile.TemporaryDirectory(prefix="freescale-bench-") as directory:
        (Path(directory) / _MODE_FILE).write_bytes(pickle.dumps(mode))
        start(_RANK, [directory])
        records: list[Record] = json.loads((Path(directory) / _RECORDS_FILE).read_text())
    return records


def be_rank(directory: Path) -> None:
    """Does what ``measured_by`` has a rank do."""
    mode: Mode = pickle.loads((directory / _MODE_FILE).read_bytes())
    with joined() as ranks:
        try:
            records = mode.measure(ranks)
        except ValueError as error:
            raise SystemExit(f"rank {ranks.rank}: {error}") from None
        if ranks.rank == 0:
            (directory / _RECORDS_FILE).write_text(json.dumps(records))


def say(text: str) -> None:
    """Tells of progress, beside the results on the standard output."""
    print(text, file=sys.stderr, flush=True)
