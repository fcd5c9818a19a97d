"""The files of a run directory: what they are called, and how they are written.

``docs/report.md`` describes what is in them. Needs no torch.
"""

import gzip
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# Of what the files hold. A reader refuses another one.
FORMAT = 1
KIND = "freescale run"

_SUMMARY = re.compile(r"rank(\d+)\.json")


def summary_path(directory: Path, rank: int) -> Path:
    """Returns where a rank writes what is known of it."""
    return directory / f"rank{rank}.json"


def trace_path(directory: Path, rank: int) -> Path:
    """Returns where a rank writes its trace."""
    return directory / f"rank{rank}.trace.json.gz"


def summaries(directory: Path) -> Iterator[tuple[int, Path]]:
    """Yields the ranks that have a summary in a directory, in order, each with its path."""
    found = ((_SUMMARY.fullmatch(path.name), path) for path in directory.iterdir())
    yield from sorted((int(match[1]), path) for match, path in found if match)


def write_json(path: Path, held: Mapping[str, Any]) -> None:
    """Writes a file, compressed if its name says so, which is there as a whole or not at all.

    Raises:
        OSError: It cannot be written.
    """
    data = (json.dumps(held, separators=(",", ":")) + "\n").encode()
    if path.suffix == ".gz":
        # No time of day within: equal contents are equal files. Level 6 takes 1.6 times as long,
        # and saves 7 %.
        data = gzip.compress(data, compresslevel=4, mtime=0)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(data)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any]:
    """Reads such a file.

    Raises:
        OSError: It cannot be read.
        ValueError: It holds something else.
    """
    data = path.read_bytes()
    try:
        held = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    except (EOFError, OSError, ValueError) as error:  # OSError: what is no gzip
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(held, dict):
        raise ValueError(f"{path} holds a {type(held).__name__} and no JSON object")
    return held
