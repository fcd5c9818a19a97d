"""The main job on two hosts, as `make train NODES=2` starts it."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAUNCHER = str(ROOT / "tools" / "run_on_emulated_hosts.py")
TRAIN = str(ROOT / "examples" / "train_seqrec.py")
SHORT = ["--data=synthetic", "--epochs=1", "--max-steps=4", "--dim=32"]
LIMIT = 120.0


def run(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=LIMIT, check=False
    )


def result(done: "subprocess.CompletedProcess[str]") -> dict[str, str]:
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    (found,) = re.findall(r"^RESULT (.*)$", done.stdout, re.MULTILINE)
    values = dict(word.split("=") for word in found.split())
    del values["samples_per_s"]
    return values


def test_two_hosts_train_what_one_host_trains(backend: str) -> None:
    options = [TRAIN, *SHORT, f"--backend={backend}"]
    on_two = result(run(LAUNCHER, "--hosts=2", "--per-host=1", *options))
    one_host = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    on_one = result(run(*one_host, "--nproc-per-node=2", *options))
    assert on_two == on_one
    assert on_two["world_size"] == "2"


def test_a_program_that_fails_is_told_with_its_host(tmp_path: Path) -> None:
    program = tmp_path / "fails.py"
    program.write_text("import os, sys\nsys.exit(3 if os.environ['GROUP_RANK'] == '1' else 0)\n")
    done = run(LAUNCHER, "--hosts=2", str(program))
    assert done.returncode == 1
    assert re.search(r"(?s)host1: exit code 1.*exitcode\s*: 3", done.stderr), done.stderr
