"""The GPU suite without a GPU: its judgement of rows, and its programs on CPU tensors."""

import importlib
import io
import json
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from gpu_check.finding import Expectation, Fact, Finding, Unavailable, from_json, parse, to_json
from gpu_check.machine import Machine, NoMachineError, look_at_machine
from gpu_check.ranks.setting import Setting
from gpu_check.report import NOT_YET_RUN, document
from gpu_check.row import SOURCES, Row
from gpu_check.rows import ROWS
from gpu_check.runner import Outcome, Result, run_row
from harness.launch import Launcher

pytestmark = pytest.mark.freescale_only


def programs() -> list[str]:
    return sorted({row.program[0] for row in ROWS if row.on_torch})


def machine_in(folder: Path, *, devices: int = 1, rehearsal: bool = False) -> Machine:
    stand_in = folder / "libcuda.so.1" if rehearsal else None
    return Machine(folder, stand_in, [Fact("devices", float(devices))])


def row_of(script: str, folder: Path, limit: float = 60.0, devices: int = 1) -> Row:
    """A row whose probe is a script of the shell."""
    path = folder / "asked_probe"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return Row("test.row", "?", "nothing", ("asked",), limit=limit, devices=devices)


def outcome_of(script: str, folder: Path, limit: float = 60.0, devices: int = 1) -> Result:
    return run_row(row_of(script, folder, limit, devices), machine_in(folder))


HOLDS = """echo '{"expect": "a", "holds": true}'"""
BREAKS = """echo '{"expect": "b", "holds": false}'"""
FACT = """echo '{"fact": "c", "value": 1.5, "unit": "us"}'"""


def test_findings_survive_json() -> None:
    findings: list[Finding] = [
        Fact("name", 2.5, "us"),
        Fact("name", "text"),
        Expectation("rule", False),
        Unavailable("why"),
    ]
    assert [from_json(to_json(finding)) for finding in findings] == findings
    assert parse("a library's warning") is None
    with pytest.raises(ValueError, match="no finding"):
        parse('{"something": "else"}')


def test_how_rows_end(tmp_path: Path) -> None:
    assert outcome_of(f"{FACT}; {HOLDS}", tmp_path).outcome is Outcome.HOLDS
    assert outcome_of(f"{HOLDS}; {BREAKS}; {HOLDS}", tmp_path).outcome is Outcome.BROKEN
    assert outcome_of(f"echo 'a warning'; {FACT}", tmp_path).outcome is Outcome.ANSWERED
    assert outcome_of("", tmp_path).outcome is Outcome.FAILED
    unavailable = """echo '{"unavailable": "no GPU"}'"""
    assert outcome_of(unavailable, tmp_path).outcome is Outcome.NOT_RUN


def test_a_program_that_fails_answers_nothing(tmp_path: Path) -> None:
    result = outcome_of(f"{HOLDS}; echo 'no memory' >&2; exit 3", tmp_path)
    assert result.outcome is Outcome.FAILED
    assert result.remark == "status 3: no memory"
    assert result.findings == [Expectation("a", True)]


def test_a_hang_is_a_result_and_leaves_nothing_behind(tmp_path: Path) -> None:
    # The child holds the pipe open: the row ends only if it is ended too.
    result = outcome_of(f"{FACT}; sleep 1000 & sleep 1000", tmp_path, limit=2.0)
    assert result.outcome is Outcome.HUNG
    assert result.findings == [Fact("c", 1.5, "us")]


def test_rows_that_need_more_are_not_run(tmp_path: Path) -> None:
    result = outcome_of("exit 1", tmp_path, devices=2)
    assert result.outcome is Outcome.NOT_RUN
    assert result.remark == "needs 2 GPUs, there are 1"


def test_no_driver_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(NoMachineError, match="was not built"):
        look_at_machine(tmp_path, rehearse=False, with_torch=False)
    probe = tmp_path / "machine_probe"
    probe.write_text("#!/bin/sh\necho 'no CUDA driver on this machine' >&2; exit 1\n")
    probe.chmod(0o755)
    with pytest.raises(NoMachineError, match="no CUDA driver on this machine\nWithout a GPU"):
        look_at_machine(tmp_path, rehearse=False, with_torch=False)


def test_every_row_has_its_program() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    probes = {path.stem for path in (SOURCES / "tests" / "gpu").glob("*_probe.cc")}
    asked = {f"{row.program[0]}_probe" for row in ROWS if not row.on_torch}
    assert asked == probes - {"machine_probe"}


def test_the_document_is_that_of_the_rows(tmp_path: Path) -> None:
    written = (SOURCES / "docs" / "gpu-results.md").read_text()
    for row in ROWS:
        assert f"| `{row.name}` | {row.asks} | {row.decides} |" in written
    if NOT_YET_RUN in written:
        assert written == document(ROWS, [], None)
    result = Result(ROWS[0], Outcome.BROKEN, [Expectation("a rule", False)], 1.0)
    text = document(ROWS, [result], machine_in(tmp_path))
    assert NOT_YET_RUN not in text
    assert "**a rule: DOES NOT HOLD**" in text
    with pytest.raises(ValueError, match="a rehearsal has no results"):
        document(ROWS, [result], machine_in(tmp_path, rehearsal=True))


def run_programs(rank: int, size: int) -> dict[str, list[str]]:
    """The lines that each program prints."""
    judges = dist.new_group(backend="gloo")
    assert isinstance(judges, dist.ProcessGroup)
    setting = Setting(rank, size, torch.device("cpu"), judges, short=True, zero_cta=False)
    lines = {}
    for program in programs():
        printed = io.StringIO()
        with redirect_stdout(printed):
            importlib.import_module(f"gpu_check.ranks.{program}").run(setting)
        lines[program] = printed.getvalue().splitlines()
    return lines


@pytest.mark.parametrize("size", [2, 3])
def test_programs_on_cpu_tensors(launch: Launcher, size: int) -> None:
    first, *others = launch(run_programs, size, checks_footprint=False)
    for program, lines in first.items():
        findings = [from_json(json.loads(line)) for line in lines]
        assert findings, program
        for finding in findings:
            assert not isinstance(finding, Expectation) or finding.holds, f"{program}: {finding}"
    # Rank 0 speaks for all.
    assert all(not any(lines.values()) for lines in others)


def row_named(name: str) -> Row:
    return next(row for row in ROWS if row.name == name)


@pytest.mark.parametrize("name", ["torch.reductions", "torch.reductions_nccl"])
def test_a_row_on_torch_starts_its_ranks(name: str, tmp_path: Path) -> None:
    result = run_row(row_named(name), machine_in(tmp_path, rehearsal=True))
    assert result.outcome is Outcome.HOLDS, result.remark
    # Who combines also decides what is expected, but without a GPU nobody asks NCCL.
    assert Expectation("sum in float32 has the same bits on all ranks", True) in result.findings


@pytest.mark.parametrize("program", ["reductions", "ddp"])
def test_ranks_may_share_a_gpu_where_nccl_does_not_combine(program: str, tmp_path: Path) -> None:
    one, many = machine_in(tmp_path), machine_in(tmp_path, devices=4)
    exchange, nccl = row_named(f"torch.{program}"), row_named(f"torch.{program}_nccl")
    assert {"--reductions=exchange", "--ranks=3"} <= set(exchange.command(one))
    assert {"--reductions=exchange", "--ranks=4"} <= set(exchange.command(many))
    assert {"--reductions=nccl", "--ranks=4"} <= set(nccl.command(many))
    assert nccl.missing(one) == "needs 2 GPUs, there are 1"
