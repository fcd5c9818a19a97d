"""Bubbles found in traces of torch.profiler: hand-made ones with known answers, and real ones."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils.data import DataLoader

from freescale_pg.observe import Blocked, StepTime, read_traces
from harness.launch import Launcher

BASE = 1_790_857_026_000_000_000  # what torch adds to all times; ns

# --- Hand-made ------------------------------------------------------------------------------------

Event = dict[str, Any]


def event(
    name: str, begin: float, end: float, category: str, thread: object = 1, **arguments: Any
) -> Event:
    """A complete event; times in microseconds."""
    times = {"ts": begin, "dur": end - begin}
    return {"ph": "X", "name": name, "cat": category, "pid": 9, "tid": thread, **times} | (
        {"args": arguments} if arguments else {}
    )


def step(number: int, begin: float, end: float) -> Event:
    return event(f"ProfilerStep#{number}", begin, end, "user_annotation")


def kernel(name: str, begin: float, end: float, stream: int = 7, **arguments: Any) -> Event:
    return event(name, begin, end, "kernel", f"stream {stream}", **arguments)


def write(directory: Path, rank: int | None, *events: Event, name: str = "") -> Path:
    trace: dict[str, Any] = {"baseTimeNanoseconds": BASE, "traceEvents": list(events)}
    if rank is not None:
        trace["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 2}
    path = directory / (name or f"trace{rank}.json")
    path.write_text(json.dumps(trace))
    return path


def only_step(*paths: Path) -> StepTime:
    (step,) = read_traces(paths).ranks[0].steps
    return step


REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def reduction(group: str, sequence: int, begin: float, end: float) -> Event:
    """A kernel that tells which collective it is."""
    known = {"Collective name": "allreduce", "Process Group Name": group, "Seq": sequence}
    return kernel(REDUCE, begin, end, **known)


def test_device(tmp_path: Path) -> None:
    """Computing hides what communicates at the same time; of the rest nothing is counted twice."""
    found = only_step(
        write(
            tmp_path,
            0,
            step(3, 0, 100),
            kernel("gemm", 10, 30),
            kernel("elementwise", 25, 40, stream=8),  # overlaps the one before
            kernel(REDUCE, 35, 60, stream=9),  # 20 of it are exposed
            kernel("ncclDevKernel_Broadcast_RING_LL(x)", 50, 65, stream=10),  # 5 more
            kernel("gemm", 90, 120),  # 10 in the step
            event("Memcpy HtoD (Pageable -> Device)", 0, 10, "gpu_memcpy", "stream 7"),
            event("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 60, 80, "x"),
        )
    )
    assert found == StepTime(
        number=3,
        total_ns=100_000,
        compute_ns=40_000,
        loader_ns=15_000,
        idle_ns=20_000,
        blocked=(Blocked("all_reduce", None, 0, 20_000), Blocked("broadcast", None, 0, 5_000)),
    )


@pytest.mark.parametrize("numbered", [False, True])
def test_stragglers_on_devices(tmp_path: Path, numbered: bool) -> None:
    """Both ranks reduce twice; rank 1 comes 30 us late to the first, rank 0 5 us to the second."""

    def reduce(sequence: int, begin: float, end: float) -> Event:
        return reduction("0", sequence, begin, end) if numbered else kernel(REDUCE, begin, end)

    first = write(
        tmp_path, 0, step(1, 0, 100), kernel("a", 0, 10), reduce(5, 10, 50), reduce(6, 60, 70)
    )
    second = write(
        tmp_path, 1, step(1, 0, 100), kernel("a", 0, 40), reduce(5, 40, 50), reduce(6, 55, 70)
    )
    report = read_traces([second, first])
    op = "allreduce" if numbered else "all_reduce"
    assert [each.rank for each in report.ranks] == [0, 1]
    assert [each.steps[0].blocked for each in report.ranks] == [
        (Blocked(op, None, 30_000, 20_000),),
        (Blocked(op, None, 5_000, 20_000),),
    ]
    assert report.bubble == pytest.approx(1 - (10 + 40) / 200)
    assert report.bubble_of(0) == pytest.approx(0.9)
    # Alone a rank does not know for whom it waited.
    assert only_step(first).blocked == (Blocked(op, None, 0, 50_000),)


def test_collectives_are_matched_by_group_and_number(tmp_path: Path) -> None:
    """What another group does at the same time on the other rank is another collective."""
    one, two = reduction("a", 1, 10, 20), reduction("a", 2, 30, 50)
    first = write(tmp_path, 0, step(1, 0, 100), one, two)
    one, two = reduction("b", 1, 18, 20), reduction("a", 2, 35, 50)
    second = write(tmp_path, 1, step(1, 0, 100), one, two)
    assert only_step(first, second).blocked == (Blocked("allreduce", None, 5_000, 25_000),)


def test_copies_between_devices_communicate(tmp_path: Path) -> None:
    found = only_step(
        write(
            tmp_path,
            0,
            step(1, 0, 100),
            kernel("gemm", 0, 50),
            event("Memcpy PtoP (Device -> Device)", 40, 70, "gpu_memcpy", "stream 8"),
            # Streams wait for calls of this backend without a kernel.
            event("freescale:all_to_all_single", 65, 90, "user_annotation"),
        )
    )
    assert found.blocked == (
        Blocked("copy between devices", None, 0, 20_000),
        Blocked("all_to_all_single", None, 0, 20_000),
    )
    assert (found.compute_ns, found.idle_ns) == (50_000, 10_000)


def test_host(tmp_path: Path) -> None:
    """Where the host computes it is blocked while a work is under way and no operator runs."""
    found = only_step(
        write(
            tmp_path,
            0,
            step(1, 0, 100),
            event("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 12, "x"),
            event("aten::linear", 12, 30, "cpu_op"),
            event("aten::addmm", 15, 28, "cpu_op"),
            # On gloo's thread; under way while the operators run, and then alone for 15.
            event("gloo:all_reduce", 10, 55, "user_annotation", 2),
            event("c10d::allreduce_", 30, 45, "cpu_op"),
            event("aten::empty", 31, 40, "cpu_op"),  # a part of starting to communicate
            event("aten::mm", 45, 50, "cpu_op"),
            event("aten::mm", 50, 99, "cpu_op", 3),  # another thread's
            event("record_function of the user", 55, 100, "user_annotation"),
        )
    )
    # 12 to 15, 28 to 45, 50 to 55.
    assert found.blocked == (Blocked("all_reduce", None, 0, 25_000),)
    assert (found.loader_ns, found.compute_ns, found.idle_ns) == (12_000, 63_000, 0)


def test_stragglers_on_hosts(tmp_path: Path) -> None:
    def work(begin: float, end: float) -> Event:
        return event("gloo:barrier", begin, end, "user_annotation", 2)

    first = write(tmp_path, 0, step(1, 0, 50), step(2, 50, 100), work(10, 40), work(60, 65))
    # This one's trace begins with a barrier that the other's has not seen.
    second = write(
        tmp_path, 1, work(-9, -5), step(1, 0, 50), step(2, 50, 100), work(35, 41), work(52, 65)
    )
    report = read_traces([first, second])
    assert [each.blocked for each in report.ranks[0].steps] == [
        (Blocked("barrier", None, 25_000, 5_000),),
        (Blocked("barrier", None, 0, 5_000),),
    ]
    assert report.ranks[1].steps[1].blocked == (Blocked("barrier", None, 8_000, 5_000),)


def test_ranks_are_in_the_order_of_the_files_where_they_do_not_say(tmp_path: Path) -> None:
    paths = [
        write(tmp_path, None, step(1, 0, end), event("aten::mm", 0, end, "cpu_op"), name=f"{end}")
        for end in (70, 50)
    ]
    report = read_traces(paths)
    assert [(each.rank, each.steps[0].total_ns) for each in report.ranks] == [
        (0, 70_000),
        (1, 50_000),
    ]


def test_compressed(tmp_path: Path) -> None:
    path = write(tmp_path, 0, step(1, 0, 10))
    packed = tmp_path / "trace0.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read_traces([packed]) == read_traces([path])


# --- Files that cannot be used --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("not json", "x.json is not a Chrome trace in JSON"),
        ("[1, 2]", "has no list of traceEvents"),
        ('{"format": 1}', "has no list of traceEvents"),
        ('{"traceEvents": [], "freescale": {}}', "is a trace of freescale_pg.trace"),
        ('{"traceEvents": [{"ph": "X", "name": "a"}]}', "cannot be understood: KeyError.*'ts'"),
        ('{"traceEvents": [7]}', "cannot be understood"),
        ('{"traceEvents": [{"ph": "i"}]}', "x.json has no steps: call step"),
    ],
)
def test_foreign_files(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        read_traces([path])


def test_broken_compression(tmp_path: Path) -> None:
    path = tmp_path / "x.json.gz"
    for content in (b"plain", gzip.compress(b'{"traceEvents": []}' * 99)[:40]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"x\.json\.gz is not a Chrome trace in JSON"):
            read_traces([path])


def test_files_that_do_not_go_together(tmp_path: Path) -> None:
    first = write(tmp_path, 0, step(1, 0, 10), step(2, 10, 20))
    again = write(tmp_path, 0, step(1, 0, 10), name="again.json")
    other = write(tmp_path, 1, step(2, 0, 10))
    with pytest.raises(ValueError, match=r"trace0.json and .*again.json are both of rank 0"):
        read_traces([first, again])
    with pytest.raises(ValueError, match=r"rank 0 has steps \[1, 2\], but rank 1 has steps \[2\]"):
        read_traces([first, other])
    with pytest.raises(ValueError, match="no traces are given"):
        read_traces([])
    with pytest.raises(FileNotFoundError):
        read_traces([tmp_path / "absent.json"])


# --- Real ones ------------------------------------------------------------------------------------

STEPS = 3


def train_profiled(rank: int, size: int, directory: str) -> None:
    """Rank 1 computes between the calls, for which rank 0 waits."""
    batches = DataLoader(torch.ones(4 * (STEPS + 1), 8), batch_size=4)
    store = dist.distributed_c10d._get_default_store()
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=STEPS, repeat=1),
        on_trace_ready=lambda found: found.export_chrome_trace(f"{directory}/trace{rank}.json"),
    ) as profiler:
        for number, batch in enumerate(batches):
            torch.mm(batch, torch.ones(8, 8))
            work = dist.all_reduce(torch.ones(9), async_op=True)
            assert work is not None
            if rank == 1:
                store.wait([f"called {number}"])
            else:
                store.set(f"called {number}", "")
            with record_function("gloo: not one of its works"):
                work.wait()
            dist.barrier()
            profiler.step()


@pytest.mark.parametrize("profiled", ["gloo", "freescale"])
@pytest.mark.freescale_only
def test_traces_of_the_profiler(launch: Launcher, tmp_path: Path, profiled: str) -> None:
    launch(train_profiled, 2, str(tmp_path), backend=profiled, checks_footprint=False)
    report = read_traces([tmp_path / "trace0.json", tmp_path / "trace1.json"])
    assert [each.rank for each in report.ranks] == [0, 1]
    assert 0 < report.bubble < 1
    for each in report.ranks:
        assert [step.number for step in each.steps] == [1, 2, 3]
        for one in each.steps:
            parts = (one.compute_ns, one.loader_ns, one.stragglers_ns, one.communication_ns)
            assert min(parts) >= 0 and sum(parts) == one.total_ns and one.idle_ns == 0
            assert one.loader_ns > 0 and one.compute_ns > 0
            assert {blocked.op for blocked in one.blocked} <= {"all_reduce", "barrier"}
    # Whatever was late on this machine, something was waited for.
    assert sum(step.communication_ns + step.stragglers_ns for step in report.ranks[0].steps) > 0
    assert {one.op for one in report.blocked()} == {"all_reduce", "barrier"}
