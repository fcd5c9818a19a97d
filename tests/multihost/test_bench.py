"""``freescale bench`` on the ranks of a job on two hosts, which share no memory."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

LAUNCHER = str(Path(__file__).resolve().parents[2] / "tools" / "run_on_emulated_hosts.py")
PROGRAM = """
import sys
from freescale_pg.cli.main import main
sys.exit(main(["bench", *sys.argv[1:]]))
"""
LIMIT = 120.0


def bench(folder: Path, *arguments: str) -> tuple["subprocess.CompletedProcess[str]", Path]:
    program, found = folder / "program.py", folder / "out.json"
    program.write_text(PROGRAM)
    command = [sys.executable, LAUNCHER, "--hosts=2", "--per-host=1", str(program), *arguments]
    command += ["--json", str(found)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    return done, found


def results(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    done, path = bench(folder, *arguments)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    found: list[dict[str, Any]] = json.loads(path.read_text())["results"]
    return found


def test_collectives(tmp_path: Path, backend: str) -> None:
    named = ("--backends", backend)
    found = results(tmp_path, "collectives", *named, "--sizes=4KiB", "--seconds=0.02")
    assert len(found) == 6
    for cell in found:
        assert (cell["ranks"], cell["failures"]) == (2, {})
        assert cell["timings"][backend]["median_us"] > 0


def test_bounds_need_shared_memory(tmp_path: Path) -> None:
    done, _ = bench(tmp_path, "collectives", "--backends=gloo,limit", "--sizes=64")
    assert done.returncode == 1
    assert "freescale: cannot measure limit: the ranks share no memory" in done.stderr


def test_priority(tmp_path: Path, backend: str) -> None:
    small = ("--urgent=4KiB", "--bulk=4MiB", "--trials=2")
    (found,) = results(tmp_path, "priority", "--backends", backend, *small)
    assert found["urgent_idle_us"] > 0 and found["bulk_loaded_ms"] > 0


def test_overlap_needs_one_host(tmp_path: Path) -> None:
    done, _ = bench(tmp_path, "overlap", "--ids=64", "--rounds=1")
    assert done.returncode == 1
    assert "freescale: overlap needs one host" in done.stderr
