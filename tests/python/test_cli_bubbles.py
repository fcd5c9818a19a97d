"""The command ``freescale bubbles``."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from freescale_pg.cli.main import main


def write_trace(directory: Path, rank: int) -> str:
    """A step of 100 us, of which a kernel takes 60, and rank 1's more."""
    times = {"pid": 1, "tid": 1, "ph": "X"}
    events = [
        {**times, "name": "ProfilerStep#4", "cat": "user_annotation", "ts": 0, "dur": 100},
        {**times, "name": "gemm", "cat": "kernel", "ts": 0, "dur": 60 + 20 * rank},
        {**times, "name": "ncclDevKernel_SendRecv(x)", "cat": "kernel", "ts": 80, "dur": 10},
    ]
    path = directory / f"trace{rank}.json"
    path.write_text(json.dumps({"traceEvents": events, "distributedInfo": {"rank": rank}}))
    return str(path)


def test_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [write_trace(tmp_path, rank) for rank in range(2)]
    assert main(["bubbles", *paths]) == 0
    text = capsys.readouterr().out
    assert "rank 1" in text and "30.0 %" in text.splitlines()[3]
    assert "send_recv" in text
    assert main(["bubbles", "--steps", *paths]) == 0
    steps = capsys.readouterr().out.removesuffix(text).splitlines()
    assert [line.split()[:4] for line in steps[1:3]] == [
        ["rank", "0", "4", "0.100"],
        ["rank", "1", "4", "0.100"],
    ]


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bubbles", "--json", write_trace(tmp_path, 0)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bubble"] == pytest.approx(0.4)
    assert found["ranks"][0]["steps"][0]["compute_ns"] == 60_000


def test_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_trace(tmp_path, 0)
    assert main(["bubbles", path, path]) == 1
    assert "are both of rank 0" in capsys.readouterr().err
    assert main(["bubbles", str(tmp_path / "absent")]) == 1
    assert "absent" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["bubbles"])


def test_it_needs_no_torch(tmp_path: Path) -> None:
    """Traces are looked at on machines that cannot train, and at once."""
    program = (
        "import sys; sys.modules['torch'] = None; from freescale_pg.cli.main import main;"
        f" sys.exit(main(['bubbles', {write_trace(tmp_path, 0)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "rank 0" in done.stdout
