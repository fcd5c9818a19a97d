"""What docs/ says of programs is so: they run, print what it says, and are what it shows."""

import difflib
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from harness.failed_program import STACKS, failure_of
from tutorial import measure

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGE = DOCS / "getting-started.md"
TUTORIAL = ROOT / "examples" / "tutorial"
STEPS = ["step0_plain", "step1_backend", "step2_balanced", "step3_overlapped", "step4_sm_free"]
LIMIT = 60.0


@dataclass(frozen=True)
class Block:
    """A block of code of a page."""

    language: str
    text: str


def blocks(page: str) -> list[Block]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [Block(*each) for each in found]


def programs(page: Path) -> Iterator[tuple[str, str, str, str]]:
    """Each program's name and text, the command that starts it, and what it is to print."""
    texts: dict[str, str] = {}
    page_blocks = blocks(page.read_text())
    for place, block in enumerate(page_blocks):
        if named := re.match(r"# (\w+\.py)\n", block.text):
            texts[named[1]] = block.text
        if block.language == "sh" and block.text.startswith("torchrun "):
            name = block.text.split()[-1]
            yield name, texts[name], block.text, page_blocks[place + 1].text


def torchrun(directory: Path, *arguments: str) -> tuple[int, str, str]:
    """Returns status, output and errors."""
    process = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--local-addr=127.0.0.1", *arguments],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **STACKS, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=LIMIT)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # Its own session: torchrun and its ranks.
            process.communicate()
    return process.returncode, output, errors


def run(directory: Path, name: str, text: str, command: str) -> tuple[int, str, str]:
    """Runs a program as the page says."""
    (directory / name).write_text(text)
    return torchrun(directory, *command.split()[1:])


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
    assert status == 0, failure_of(output, errors)
    assert output.splitlines() == expected.splitlines()[:2]


def loss_after(step: str, *options: str) -> float:
    """The loss that a step of the tutorial prints after few steps of training on two ranks."""
    program = str(TUTORIAL / f"{step}.py")
    launch = ["--standalone", "--nproc-per-node=2", program, "--samples=256", *options]
    status, output, errors = torchrun(ROOT, *launch)
    assert status == 0, failure_of(output, errors)
    assert "all ranks" in output
    found = re.search(r"^loss ([0-9.]+)$", output, re.MULTILINE)
    assert found is not None, output
    return float(found[1])


@pytest.fixture(scope="module")
def plain_loss() -> float:
    return loss_after(STEPS[0])


@pytest.mark.parametrize("step", STEPS[1:])
def test_steps_of_the_tutorial_learn_the_same(step: str, plain_loss: float) -> None:
    assert loss_after(step) == pytest.approx(plain_loss, abs=2e-5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_last_step_asks_for_a_gpu_of_its_own_for_each_rank() -> None:
    ended = subprocess.run(
        [sys.executable, str(TUTORIAL / f"{STEPS[-1]}.py"), "--device=cuda"],
        env={**os.environ, "LOCAL_RANK": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert ended.returncode != 0
    assert "local rank 1 has no GPU: there are 0" in ended.stderr


def changed(lines: list[str]) -> list[str]:
    """The lines of a diff that come or go, but imports and the docstring of the file."""
    return [
        line
        for line in lines
        if line[:1] in ("+", "-")
        and line[:3] not in ("+++", "---")
        and not re.match(r'[+-](from |import |""")', line)
    ]


@pytest.mark.parametrize("number", range(1, len(STEPS)))
def test_the_tutorial_shows_what_changes(number: int) -> None:
    before, after = ((TUTORIAL / f"{STEPS[n]}.py").read_text() for n in (number - 1, number))
    difference = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="")
    section = re.split(r"^## ", (DOCS / "tutorial.md").read_text(), flags=re.MULTILINE)
    (text,) = (part for part in section if part.startswith(f"Step {number}: "))
    shown = [block.text for block in blocks(text) if block.language == "diff"]
    assert changed("".join(shown).splitlines()) == changed(list(difference))
    for line in "".join(shown).splitlines():
        assert line[:1] != " " or line[1:] in after.splitlines()


def test_the_tutorial_shows_the_plain_loop() -> None:
    (shown,) = (
        block.text
        for block in blocks((DOCS / "tutorial.md").read_text())
        if block.language == "python"
    )
    loop = textwrap.indent(shown, 8 * " ")
    assert loop in (TUTORIAL / f"{STEPS[0]}.py").read_text()


def report(*steps: tuple[int, int]) -> dict[str, object]:
    """Of one rank: numbers of steps, and how long they took; half of that is compute."""
    none = {"loader_ns": 0, "communication_ns": 0}
    return {
        "ranks": [
            {
                "steps": [
                    {"step": n, "total_ns": t, "compute_ns": t // 2, "stragglers_ns": t // 2} | none
                    for n, t in steps
                ]
            }
        ]
    }


def test_of_each_step_the_shortest_round_is_measured() -> None:
    disturbed = report((4, 1), (5, 9_000_000), (6, 2_000_000))
    quiet = report((4, 1), (5, 4_000_000), (6, 8_000_000))
    step_ms, percent = measure._shares([disturbed, quiet], [disturbed, quiet])
    assert step_ms == 3.0
    assert percent == [50.0, 0.0, 50.0, 0.0]


def test_every_benchmark_is_listed() -> None:
    listed = (DOCS / "benchmarks.md").read_text()
    scripts = [
        path.name
        for path in (ROOT / "benchmarks").glob("*.py")
        if '__name__ == "__main__"' in path.read_text()
    ]
    assert len(scripts) > 10
    assert [name for name in scripts if f"benchmarks/{name})" not in listed] == []
