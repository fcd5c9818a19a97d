"""Priority streams and what is known of devices, on the stand-in driver; and errors without one."""

import ctypes
import dataclasses
import gc
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import freescale_pg as fs
from freescale_pg import streams
from freescale_pg.streams.driver import Driver
from harness.launch import Launcher

ROOT = Path(__file__).parents[2]
STAND_IN = "tests/fakes/cuda_driver/libcuda.so.1"
QUIET = {"CUDA_MODULE_LOADING": "EAGER", "CUDA_DEVICE_MAX_CONNECTIONS": "8"}

OnStandIn = Callable[..., Any]


def need_cuda_python() -> None:
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        pytest.skip("cuda-python is not installed")


@pytest.fixture
def on_stand_in(launch: Launcher) -> OnStandIn:
    """Calls ``body(*arguments)`` in a process of its own where the driver is the stand-in."""
    need_cuda_python()
    version = torch.__version__.partition("+")[0]
    trees = (ROOT / "build" / name for name in (f"torch-{version}", "release"))
    built = next((tree / STAND_IN for tree in trees if (tree / STAND_IN).exists()), None)
    if built is None:
        pytest.skip("the stand-in driver is not built: make build")

    def call(body: Callable[..., Any], *arguments: Any, **environment: str) -> Any:
        return launch(
            with_stand_in,
            1,
            body,
            str(built),
            *arguments,
            init=False,
            environment=environment,
            checks_footprint=False,
        )[0]

    return call


def with_stand_in(
    rank: int, size: int, body: Callable[..., Any], stand_in: str, *arguments: Any
) -> Any:
    # A library of that name that is in the process is what opening the name gives.
    ctypes.CDLL(stand_in)
    assert hasattr(ctypes.CDLL("libcuda.so.1"), "fake_cuda_state"), "a real driver came first"
    return body(*arguments)


class PlayedStream:
    """What torch with CUDA makes of a stream of another library; the tests' torch has none."""

    def __init__(self, handle: int, device: torch.device) -> None:
        self.handle, self.device = handle, device


def play_torch_with_cuda(
    current: int = 0, stream: Callable[[int, torch.device], Any] = PlayedStream
) -> None:
    for place, name, value in (
        (torch.backends.cuda, "is_built", lambda: True),
        (torch.cuda, "current_device", lambda: current),
        (torch.cuda, "ExternalStream", stream),
    ):
        setattr(place, name, value)


def make_stream(priority: Any, device: Any = None) -> PlayedStream:
    stream: Any = streams.priority_stream(priority, device)
    assert isinstance(stream, PlayedStream)
    return stream


def priority_of(handle: int, device: int = 0) -> int:
    driver = Driver()
    with driver.primary_context(device):
        return int(driver.call("cuStreamGetPriority", handle))


def is_destroyed(handle: int) -> bool:
    try:
        priority_of(handle)
    except RuntimeError as error:
        assert "CUDA_ERROR_INVALID_HANDLE" in str(error), error
        return True
    return False


def context_is_held(device: int = 0) -> bool:
    """The stand-in refuses a context that nobody holds."""
    driver = Driver()
    context = driver.call("cuDevicePrimaryCtxRetain", device)
    driver.call("cuDevicePrimaryCtxRelease", device)
    driver.call("cuCtxPushCurrent", context)
    try:
        driver.call("cuCtxGetStreamPriorityRange")
    except RuntimeError as error:
        assert "CUDA_ERROR_INVALID_CONTEXT" in str(error), error
        return False
    finally:
        driver.call("cuCtxPopCurrent")
    return True


# --- Without cuda-python, a driver or a device --------------------------------------------------


def call_without_cuda_python(rank: int, size: int) -> None:
    sys.modules["cuda.bindings"] = None  # type: ignore[assignment]  # As if it were not installed.
    for call in (
        streams.device_info,
        streams.priority_range,
        lambda: streams.priority_stream(0),
    ):
        with pytest.raises(ImportError, match="cuda-python does not load") as raised:
            call()
        assert "freescale_pg[cuda12]" in str(raised.value)
        assert "freescale_pg[cuda13]" in str(raised.value)


def test_without_cuda_python_the_error_names_the_extras(launch: Launcher) -> None:
    launch(call_without_cuda_python, 1, init=False)


def call_without_driver(rank: int, size: int) -> None:
    with pytest.raises(ImportError, match="The driver does not start") as raised:
        streams.device_info()
    assert "freescale_pg[cuda13]" in str(raised.value)


def test_without_a_driver_the_error_says_so(launch: Launcher) -> None:
    """Where there is one, it shows no device."""
    need_cuda_python()
    launch(call_without_driver, 1, init=False, environment={"CUDA_VISIBLE_DEVICES": ""})


def call_without_device() -> None:
    with pytest.raises(ImportError, match=r"cuInit: CUDA_ERROR_NO_DEVICE \(100\)"):
        streams.priority_range()


def test_without_a_device_the_error_says_so(on_stand_in: OnStandIn) -> None:
    on_stand_in(call_without_device, FAKE_CUDA_DEVICES="0")


def test_package_does_not_load_it() -> None:
    source = """
import sys, freescale_pg
loaded = [name for name in sys.modules if name.startswith(("cuda", "freescale_pg.streams"))]
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", source], check=True, timeout=100)
    assert fs.streams is streams


# --- Ranges and streams -------------------------------------------------------------------------


def ask_ranges() -> None:
    for known in (None, 0, 1, "cuda:1", "cuda", torch.device("cuda", 1)):
        assert streams.priority_range(known) == (0, -5), known
    for unknown in (2, -1, "cuda:2"):
        with pytest.raises(ValueError, match="this process sees 2"):
            streams.priority_range(unknown)
    with pytest.raises(ValueError, match="'cpu' is no CUDA device"):
        streams.priority_range("cpu")


def test_range_of_a_device(on_stand_in: OnStandIn) -> None:
    on_stand_in(ask_ranges)


def look_for_contexts() -> None:
    streams.priority_range(1)
    assert int(Driver().call("cuCtxGetCurrent")) == 0
    assert not context_is_held(1)


def test_range_leaves_no_context(on_stand_in: OnStandIn) -> None:
    on_stand_in(look_for_contexts)


def make_several() -> None:
    play_torch_with_cuda(current=1)
    for priority in (0, -3, -5):
        stream = make_stream(priority, 0)
        assert stream.device == torch.device("cuda", 0)
        assert priority_of(stream.handle) == priority
    stream = make_stream(-1)
    assert stream.device == torch.device("cuda", 1), "torch's current device"
    assert priority_of(stream.handle, 1) == -1


def test_stream_has_its_priority_and_device(on_stand_in: OnStandIn) -> None:
    on_stand_in(make_several)


def drop_one_of_two() -> None:
    play_torch_with_cuda()
    stream = make_stream(-2)
    other = make_stream(-4)
    handle = stream.handle
    del stream
    gc.collect()
    assert is_destroyed(handle)
    assert priority_of(other.handle) == -4
    assert context_is_held()
    del other
    gc.collect()
    assert not context_is_held()


def test_stream_goes_with_its_object(on_stand_in: OnStandIn) -> None:
    on_stand_in(drop_one_of_two)


def refuse_a_stream() -> None:
    handles = []

    def refuse(handle: int, device: torch.device) -> None:
        handles.append(handle)
        raise RuntimeError("refused")

    play_torch_with_cuda(stream=refuse)
    with pytest.raises(RuntimeError, match="refused"):
        streams.priority_stream(0)
    assert is_destroyed(handles[0])
    assert not context_is_held()


def test_stream_that_torch_refuses_is_destroyed(on_stand_in: OnStandIn) -> None:
    on_stand_in(refuse_a_stream)


def drop_in_a_fork() -> None:
    play_torch_with_cuda()
    stream = make_stream(-2)
    handle = stream.handle
    child = os.fork()
    if child == 0:
        calls = []
        Driver.call = lambda *arguments: calls.append(arguments)  # type: ignore[method-assign]
        del stream
        gc.collect()
        os._exit(len(calls))
    assert os.waitpid(child, 0)[1] == 0
    assert priority_of(handle) == -2


def test_fork_does_not_touch_the_stream(on_stand_in: OnStandIn) -> None:
    """No call of the driver works in it."""
    on_stand_in(drop_in_a_fork)


def drop_after_a_fault() -> None:
    play_torch_with_cuda()
    stream = make_stream(-2)
    refused = []

    def refuse(driver: Driver, name: str, *arguments: object) -> None:
        refused.append(name)
        raise RuntimeError(f"{name}: CUDA_ERROR_ILLEGAL_ADDRESS (700)")

    Driver.call = refuse  # type: ignore[method-assign]
    complaints: list[Any] = []
    sys.unraisablehook = sys.excepthook = lambda *what: complaints.append(what)
    del stream
    gc.collect()
    assert refused
    assert not complaints


def test_stream_of_a_failed_context_goes_quietly(on_stand_in: OnStandIn) -> None:
    """All calls fail then, and dropping an object is no place to say so."""
    on_stand_in(drop_after_a_fault)


def ask_for_bad_priorities() -> None:
    play_torch_with_cuda()
    for priority in (1, -6):
        with pytest.raises(
            ValueError, match=f"priority {priority} is .*least is 0 .*greatest is -5"
        ):
            streams.priority_stream(priority)
    for wrong in (-1.0, True, "high", None):
        with pytest.raises(TypeError, match=f"got {wrong!r}"):
            make_stream(wrong)


def test_priority_out_of_range_names_the_range(on_stand_in: OnStandIn) -> None:
    on_stand_in(ask_for_bad_priorities)


def ask_torch_without_cuda() -> None:
    with pytest.raises(RuntimeError, match="is built without CUDA"):
        streams.priority_stream(0)
    assert not context_is_held()


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="torch is built with CUDA")
def test_torch_without_cuda_is_refused(on_stand_in: OnStandIn) -> None:
    on_stand_in(ask_torch_without_cuda)


# --- What is known of devices -------------------------------------------------------------------


def describe_three() -> None:
    first, second, third = streams.device_info()
    assert not context_is_held(), "takes no memory of the device"
    assert [info.ordinal for info in (first, second, third)] == [0, 1, 2]
    assert first.name == "Stand-in GPU"
    assert first.uuid == "7374616e-642d-696e-2030-000000000000"
    assert second.uuid == "7374616e-642d-696e-2031-000000000000"
    assert first.compute_capability == (9, 0)
    assert first.copy_engines == 5
    assert [info.peers for info in (first, second, third)] == [(2,), (), (0,)]
    assert (first.stream_priorities, first.virtual_memory, first.posix_handles) == (True,) * 3
    assert first.fabric_handles is False


def test_info_of_each_device(on_stand_in: OnStandIn) -> None:
    on_stand_in(describe_three, FAKE_CUDA_DEVICES="3", FAKE_CUDA_P2P="0-2", FAKE_CUDA_ENGINES="5")


def describe_where_all_reach_all() -> None:
    call = Driver.call

    def reach(driver: Driver, name: str, *arguments: object) -> Any:
        return 1 if name == "cuDeviceCanAccessPeer" else call(driver, name, *arguments)

    Driver.call = reach  # type: ignore[method-assign]
    assert [info.peers for info in streams.device_info()] == [(1,), (0,)]


def test_device_is_no_peer_of_its_own(on_stand_in: OnStandIn) -> None:
    on_stand_in(describe_where_all_reach_all)


@pytest.mark.parametrize(
    ("number", "version", "batch_copy", "local_copies"),
    [
        ("12040", (12, 4), False, False),
        ("12080", (12, 8), True, False),
        ("13000", (13, 0), True, False),
        ("13010", (13, 1), True, True),
    ],
)
def test_info_depends_on_the_driver(
    on_stand_in: OnStandIn,
    number: str,
    version: tuple[int, int],
    batch_copy: bool,
    local_copies: bool,
) -> None:
    info = on_stand_in(streams.device_info, FAKE_CUDA_VERSION=number)[0]
    assert info.driver_version == version
    assert info.word_operations is True
    assert info.batch_copy is batch_copy
    assert info.local_copies_on_engines is local_copies


def test_fabric_handles_are_told(on_stand_in: OnStandIn) -> None:
    assert on_stand_in(streams.device_info, FAKE_CUDA_FABRIC="yes")[0].fabric_handles is True


def ask_for_an_unknown_attribute() -> None:
    driver = Driver()
    device = driver.call("cuDeviceGet", 0)
    assert driver.attribute(device, "CAN_USE_64_BIT_STREAM_MEM_OPS") == 0
    with pytest.raises(RuntimeError, match="of ASYNC_ENGINE_COUNT: CUDA_ERROR_INVALID_DEVICE"):
        driver.attribute(7, "ASYNC_ENGINE_COUNT")


def test_what_a_driver_does_not_know_is_absent(on_stand_in: OnStandIn) -> None:
    on_stand_in(ask_for_an_unknown_attribute)


@pytest.mark.parametrize(
    ("name", "value", "texts"),
    [
        ("CUDA_MODULE_LOADING", "EAGER", []),
        ("CUDA_MODULE_LOADING", "LAZY", ["set CUDA_MODULE_LOADING=EAGER"]),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "1", ["NVIDIA/nccl#2238"]),
    ],
)
def test_info_warns_of_the_environment(
    on_stand_in: OnStandIn, name: str, value: str, texts: list[str]
) -> None:
    warnings = on_stand_in(streams.device_info, **QUIET | {name: value})[0].warnings
    assert len(warnings) == len(texts)
    for warning, text in zip(warnings, texts, strict=True):
        assert text in warning


def test_every_fact_says_what_it_means(on_stand_in: OnStandIn) -> None:
    info = on_stand_in(streams.device_info, **QUIET | {"CUDA_DEVICE_MAX_CONNECTIONS": "1"})[1]
    facts = info.facts()
    assert [fact.name for fact in facts] == [known.name for known in dataclasses.fields(info)]
    table = str(info)
    for fact in facts:
        assert fact.value == getattr(info, fact.name)
        assert fact.meaning
        assert fact.name == "warnings" or f"{fact.meaning}\n" in table
    values = {line.split()[0]: line.split()[1] for line in table.splitlines()}
    assert values["driver_version"] == "13.0"
    assert values["compute_capability"] == "9.0"
    assert values["peers"] == "0"
    assert values["batch_copy"] == "yes"
    assert values["fabric_handles"] == "no"
    assert table.splitlines()[-1].startswith("warning: CUDA_DEVICE_MAX_CONNECTIONS=1")
