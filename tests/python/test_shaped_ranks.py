"""The network that benchmarks give to gloo: it limits, it carries torch's ranks, and it goes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from freescale_pg.bench.launch import LaunchError
from freescale_pg.bench.shaped import ShapingUnavailableError, run_shaped, shaped_ranks

RATE = 10_000_000
LIMIT = 60.0  # seconds; for what takes a few on an idle machine

# Rank 1 sends so many bytes to rank 0, which prints how long they took.
TRANSFER = """
import os, socket, sys, time
count = int(sys.argv[1])
address = (os.environ["MASTER_ADDR"], 5000)
if os.environ["RANK"] == "1":
    deadline = time.monotonic() + 20
    while True:
        try:
            peer = socket.create_connection(address, timeout=20)
            break
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    peer.sendall(bytes(count))
else:
    server = socket.create_server(address)
    server.settimeout(20)
    peer, _ = server.accept()
    begin = time.monotonic()
    while count > 0:
        got = len(peer.recv(1 << 20))
        assert got
        count -= got
    open(sys.argv[2], "w").write(str(time.monotonic() - begin))
"""

GLOO = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
output, given = torch.zeros(size), torch.full((size,), float(rank))
dist.all_to_all_single(output, given)
assert torch.equal(output, torch.arange(float(size))), output
dist.destroy_process_group()
"""

# Makes a network, says so, and ends as the argument says.
MAKER = f"""
import sys, time
from freescale_pg.bench.shaped import shaped_ranks
with shaped_ranks(2, {RATE}):
    print("made", flush=True)
    if sys.argv[1] == "raise":
        raise KeyError("what went wrong")
    time.sleep(60)
"""


def namespaces_of(process: int) -> list[str]:
    command = ["ip", "netns", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT)
    return [line for line in listed.stdout.splitlines() if line.startswith(f"fs-{process}-")]


@pytest.fixture(autouse=True)
def permitted() -> Iterator[None]:
    """Skips where the kernel, the user or the tools don't allow such a network at all."""
    try:
        with shaped_ranks(1, RATE):
            assert len(namespaces_of(os.getpid())) == 2
    except ShapingUnavailableError as error:
        pytest.skip(str(error))
    yield
    assert not namespaces_of(os.getpid())


def test_no_rank_sends_faster_than_the_rate(tmp_path: Path) -> None:
    script, seconds = tmp_path / "transfer.py", tmp_path / "seconds"
    script.write_text(TRANSFER)
    run_shaped(str(script), ["5000000", str(seconds)], 2, RATE, LIMIT)
    # The clock starts when the connection is made; up to 64 KiB pass at once.
    assert float(seconds.read_text()) >= 0.4


def test_gloo_ranks_meet(tmp_path: Path) -> None:
    script = tmp_path / "gloo.py"
    script.write_text(GLOO)
    run_shaped(str(script), [], 3, RATE, LIMIT)


def test_rank_that_fails_ends_the_others(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(
        "import os, sys, time\nos.environ['RANK'] == '1' and sys.exit(7)\ntime.sleep(60)"
    )
    begin = time.monotonic()
    with pytest.raises(LaunchError, match="rank 1 ended with status 7"):
        run_shaped(str(script), [], 2, RATE, LIMIT)
    assert time.monotonic() - begin < 50.0


def test_ranks_that_hang_are_ended(tmp_path: Path) -> None:
    script = tmp_path / "hangs.py"
    script.write_text("import time\ntime.sleep(60)")
    with pytest.raises(LaunchError, match=r"still ran after 0\.5 s"):
        run_shaped(str(script), [], 2, RATE, 0.5)


@pytest.mark.parametrize("end", ["raise", "terminate"])
def test_network_goes_with_its_maker(end: str) -> None:
    maker = subprocess.Popen([sys.executable, "-c", MAKER, end], stdout=subprocess.PIPE, text=True)
    try:
        assert maker.stdout is not None
        assert maker.stdout.readline() == "made\n"
        if end == "terminate":
            maker.terminate()
        assert maker.wait(LIMIT) == (128 + signal.SIGTERM if end == "terminate" else 1)
    finally:
        maker.kill()
        maker.communicate()
    assert not namespaces_of(maker.pid)
