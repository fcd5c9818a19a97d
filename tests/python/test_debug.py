"""The flight recorder: what it remembers, when it writes that down, what comparing dumps finds."""

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from freescale_pg import Options, Priority, debug
from harness.launch import Launcher

LARGE = 300_000  # elements; far more than travels with a header


# --- What is recorded -----------------------------------------------------------------------------


def exchange(count: int, group: dist.ProcessGroup | None = None) -> None:
    given = torch.ones(count * dist.get_world_size(group))
    dist.all_to_all_single(torch.empty_like(given), given, group=group)


def check_records(rank: int, size: int) -> None:
    options = Options(priority=Priority.URGENT)
    emb = dist.new_group(backend="freescale", pg_options=options, group_desc="emb")
    before = len(debug.dump()["records"])
    exchange(2, emb)
    exchange(LARGE, emb)
    dist.all_reduce(torch.ones(3, dtype=torch.float64))
    if rank == 0:
        dist.send(torch.ones(5), 1, tag=7)
    elif rank == 1:
        dist.recv(torch.empty(5), 0, tag=7)
    with pytest.raises(ValueError, match="output"):
        dist.all_to_all_single(torch.empty(size + 1), torch.empty(size))
    found = debug.dump()
    small, large, reduced, *others = found["records"][before:]
    of_group = found["groups"][small["group"]]
    assert (of_group["rank"], of_group["size"]) == (rank, size)
    for record, count in ((small, 2), (large, LARGE)):
        assert record["op"] == "all_to_all_single" and record["group"] == small["group"]
        assert record["priority"] == "URGENT" and record["dtype"] == "float32"
        assert record["bytes_in"] == record["bytes_out"] == 4 * count * size
        assert record["state"] == "completed"
        assert 0 < record["begin_ns"] <= record["end_ns"] <= found["now_ns"]
    assert large["sequence"] == small["sequence"] + 1
    assert set(small["paths"]) == {"inline", "local"}
    assert "local" in large["paths"] and {"chunks", "pull"} & set(large["paths"])
    assert (reduced["op"], reduced["dtype"], reduced["bytes_in"]) == ("all_reduce", "float64", 24)
    assert reduced["paths"] and reduced["priority"] == "NORMAL"
    if rank < 2:
        message = others.pop(0)
        assert (message["op"], message["tag"]) == (("send", "recv")[rank], 7)
        assert message["peer"] == 1 - rank and "sequence" not in message
    (refused,) = others
    assert refused["state"] == "failed" and f"{size + 1}" in refused["failure"]


@pytest.mark.freescale_only
def test_calls_are_recorded(launch: Launcher) -> None:
    launch(check_records, 3)


def check_waiting(rank: int, size: int, directory: str) -> None:
    """Rank 1 does not come; the others say so while they wait."""
    exchange(1)
    dist.barrier()
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["looked0", "looked2"])
        exchange(1)
        return
    work = dist.all_to_all_single(torch.empty(size), torch.ones(size), async_op=True)
    assert work is not None
    last = debug.dump(f"{directory}/rank{rank}")["records"][-1]
    assert last["state"] == "in_flight" and last["end_ns"] == 0
    assert "rank 1 (it has not called it)" in last["waits_for"]
    store.set(f"looked{rank}", "")
    work.wait()
    assert debug.dump()["records"][-1]["state"] == "completed"


@pytest.mark.freescale_only
def test_calls_in_flight_say_what_they_wait_for(launch: Launcher, tmp_path: Path) -> None:
    launch(check_waiting, 3, str(tmp_path))
    (finding,) = debug.diff([tmp_path / "rank0", tmp_path / "rank2"])
    assert "all_to_all_single #3 is in flight" in finding
    assert "rank 1 (it has not called it)" in finding and "1 ranks gave no dump" in finding


def check_buffer(rank: int, size: int, kept: int) -> None:
    for _ in range(5):
        dist.barrier()
    sequences = [record["sequence"] for record in debug.dump()["records"]]
    assert sequences == list(range(6 - kept, 6)), sequences


@pytest.mark.freescale_only
@pytest.mark.parametrize("kept", [0, 1, 3, 5])
def test_buffer_size_is_honoured(launch: Launcher, kept: int) -> None:
    launch(check_buffer, 2, kept, environment={"TORCH_FR_BUFFER_SIZE": str(kept)})


# --- Dumps of their own accord --------------------------------------------------------------------


def check_timeout_dumps(rank: int, size: int, directory: str) -> None:
    exchange(1)
    # Not the launch's: all ranks would have to come within it.
    dist.group.WORLD.set_timeout(timedelta(seconds=1))
    store = dist.distributed_c10d._get_default_store()
    if rank == 2:
        store.wait(["given up 0", "given up 1"], timedelta(seconds=60))
        debug.dump(f"{directory}/job_2")
        return
    with pytest.raises(RuntimeError, match=r"rank 2 \(it has not called it\)|gave it up"):
        exchange(LARGE)
    assert Path(f"{directory}/job_{rank}").is_file()
    store.set(f"given up {rank}", "")


@pytest.mark.freescale_only
def test_a_timeout_names_the_rank_that_never_called(launch: Launcher, tmp_path: Path) -> None:
    launch(
        *(check_timeout_dumps, 3, str(tmp_path)),
        environment={"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/job_"},
    )
    files = sorted(tmp_path.glob("job_*"))
    command = [sys.executable, "-m", "freescale_pg.debug", *map(str, files)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "rank 2 never called all_to_all_single #2" in printed
    assert "rank 2 last called all_to_all_single #1, completed" in printed
    assert "Timed out" in printed


def check_abort_dumps(rank: int, size: int, directory: str) -> None:
    exchange(1)
    dist.distributed_c10d._abort_process_group()
    assert json.loads(Path(f"{directory}/job_{rank}").read_text())["records"]


@pytest.mark.freescale_only
def test_an_abort_dumps(launch: Launcher, tmp_path: Path) -> None:
    launch(
        *(check_abort_dumps, 2, str(tmp_path)),
        environment={"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/job_"},
    )


# --- Comparing ------------------------------------------------------------------------------------


def call(sequence: int, op: str = "all_reduce", **others: Any) -> dict[str, Any]:
    record = {"group": "g", "op": op, "sequence": sequence, "dtype": "float32", "bytes_in": 8}
    return record | {"bytes_out": 8, "state": "completed"} | others


def dump_of(rank: int, *records: dict[str, Any], size: int = 3) -> dict[str, Any]:
    group = {"name": "emb", "rank": rank, "size": size, "global_ranks": []}
    return {"format": 1, "groups": {"g": group}, "records": list(records)}


def test_equal_dumps_differ_in_nothing() -> None:
    calls = [call(1), call(2, "barrier")]
    assert debug.diff([dump_of(rank, *calls) for rank in range(3)]) == []


def test_a_rank_that_never_called_is_named() -> None:
    waiting = call(2, state="in_flight", waits_for="rank 2 (it has not called it)")
    dumps = [dump_of(0, call(1), waiting), dump_of(1, call(1), waiting), dump_of(2, call(1))]
    assert debug.diff(dumps) == [
        "group 'emb': rank 2 never called all_reduce #2. rank 2 last called all_reduce #1, "
        "completed. rank 0, rank 1: waits for rank 2 (it has not called it)"
    ]


def test_another_operation_is_named() -> None:
    dumps = [dump_of(0, call(7)), dump_of(1, call(7, "barrier")), dump_of(2, call(7))]
    assert debug.diff(dumps) == [
        "group 'emb': the ranks differ at #7: rank 0, rank 2: called all_reduce; "
        "rank 1: called barrier"
    ]


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({"dtype": "float64"}, "rank 0, rank 2: float32; rank 1: float64"),
        ({"bytes_in": 12}, "rank 0, rank 2: 8 bytes; rank 1: 12 bytes"),
    ],
)
def test_other_tensors_are_named(others: dict[str, Any], said: str) -> None:
    dumps = [dump_of(0, call(1)), dump_of(1, call(1, **others)), dump_of(2, call(1))]
    assert debug.diff(dumps) == [
        f"group 'emb': the ranks gave different tensors to all_reduce #1: {said}"
    ]


def test_ragged_exchanges_may_differ_in_size() -> None:
    dumps = [dump_of(rank, call(1, "all_to_all_single", bytes_in=rank)) for rank in range(3)]
    assert debug.diff(dumps) == []


def test_a_failure_is_shown_by_rank() -> None:
    dumps = [
        dump_of(0, call(1), size=2),
        dump_of(1, call(1, state="failed", failure="rank 1: out of memory"), size=2),
    ]
    assert debug.diff(dumps) == [
        "group 'emb': all_reduce #1 failed. rank 0: completed it; "
        "rank 1: failed: rank 1: out of memory"
    ]


def test_what_a_rank_has_forgotten_is_not_held_against_it() -> None:
    dumps = [dump_of(0, *map(call, range(1, 9)), size=2), dump_of(1, call(7), call(8), size=2)]
    assert debug.diff(dumps) == []


def test_a_rank_that_called_nothing_is_named() -> None:
    (finding,) = debug.diff([dump_of(0, call(1, state="in_flight"), size=2), dump_of(1, size=2)])
    assert "rank 1 never called all_reduce #1. rank 1 called nothing" in finding


def test_what_is_no_dump_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("[1]")
    with pytest.raises(ValueError, match="other is not a dump"):
        debug.diff([tmp_path / "other"])
    with pytest.raises(ValueError, match="format 2; known is 1"):
        debug.diff([dump_of(0) | {"format": 2}])
    with pytest.raises(ValueError, match="two dumps are of rank 0 of group 'emb'"):
        debug.diff([dump_of(0), dump_of(0)])
