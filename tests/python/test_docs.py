"""The programs of docs/getting-started.md run as they stand there, and print what it says."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "getting-started.md"
LIMIT = 60.0


@dataclass(frozen=True)
class Block:
    """A block of code of a page."""

    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [Block(*each) for each in found]


def programs(page: Path) -> Iterator[tuple[str, str, str, str]]:
    """Each program's name and text, the command that starts it, and what it is to print."""
    texts: dict[str, str] = {}
    page_blocks = blocks(page)
    for place, block in enumerate(page_blocks):
        if named := re.match(r"# (\w+\.py)\n", block.text):
            texts[named[1]] = block.text
        if block.language == "sh" and block.text.startswith("torchrun "):
            name = block.text.split()[-1]
            yield name, texts[name], block.text, page_blocks[place + 1].text


def run(directory: Path, name: str, text: str, command: str) -> tuple[int, str, str]:
    """Runs a program as the page says."""
    (directory / name).write_text(text)
    launcher, *arguments = command.split()
    assert launcher == "torchrun"
    process = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--local-addr=127.0.0.1", *arguments],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=LIMIT)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # Its own session: torchrun and its ranks.
            process.communicate()
    return process.returncode, output, errors


def test_the_page_has_its_programs() -> None:
    assert [name for name, *_ in programs(PAGE)] == ["first.py", "wrong.py"]


@pytest.mark.parametrize("number", [0, 1])
def test_programs_do_what_the_page_says(tmp_path: Path, number: int) -> None:
    name, text, command, expected = list(programs(PAGE))[number]
    status, output, errors = run(tmp_path, name, text, command)
    if status == 0:
        assert output == expected, errors
    else:
        assert all(line in errors for line in expected.splitlines()), errors


def test_the_first_program_runs_on_gloo_as_the_page_says(tmp_path: Path) -> None:
    name, text, command, expected = next(programs(PAGE))
    gloo = text.replace('backend="freescale"', 'backend="gloo"')
    assert gloo != text
    status, output, errors = run(tmp_path, name, gloo, command)
    assert status == 0, errors
    assert output.splitlines() == expected.splitlines()[:2]
