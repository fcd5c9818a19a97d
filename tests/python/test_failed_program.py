"""Messages of tests that run programs begin with torchrun's words, and end with the ranks'."""

import os
import subprocess
import sys
from pathlib import Path

from harness.failed_program import STACKS, failure_of
from harness.interpreters import without_launcher


def test_what_a_rank_wrote_comes_last(tmp_path: Path) -> None:
    program = tmp_path / "aborts.py"
    program.write_text("import os\nprint('said', flush=True)\nos.abort()\n")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    ended = subprocess.run(
        [sys.executable, *launcher, "--nproc-per-node=1", str(program)],
        env={**without_launcher(os.environ), **STACKS},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode != 0
    lines = failure_of(ended.stdout, ended.stderr).strip().splitlines()
    assert lines[0] == "said"
    table = next(at for at, line in enumerate(lines) if "(SIGABRT)" in line)
    stack = next(at for at, line in enumerate(lines) if 'aborts.py", line 3' in line)
    assert table < stack
    assert not any("torch/distributed/run.py" in line for line in lines)


def test_a_program_without_torchrun_is_shown_as_it_is() -> None:
    assert failure_of("said\n", "Traceback\n") == "\nsaid\nTraceback"
