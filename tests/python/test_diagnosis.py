"""``freescale info`` and ``freescale doctor``: what is found, what it means, and the cure."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from freescale_pg.cli.main import main
from freescale_pg.diagnosis import checks
from freescale_pg.diagnosis.checks import Check
from freescale_pg.diagnosis.facts import Interface, facts, interfaces, rdma_devices
from freescale_pg.diagnosis.links import LinkProbe, probe_link

pytestmark = pytest.mark.freescale_only

needs_ucx = pytest.mark.skipif(
    importlib.util.find_spec("libucx") is None, reason="no UCX: pip install libucx-cu12"
)


def always(probe: LinkProbe) -> checks.Callable[[], LinkProbe]:
    return lambda: probe


def test_two_ranks_of_this_host_are_tried() -> None:
    found = probe_link(between_hosts=False)
    assert (found.works, found.transport) == (True, "shm"), found


@needs_ucx
def test_two_ranks_over_the_network_are_tried() -> None:
    found = probe_link(between_hosts=True)
    assert (found.works, found.transport) == (True, "ucx"), found


def test_a_missing_ucx_is_told_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FREESCALE_UCX_LIBRARY", "/nowhere/libucp.so.0")
    found = checks.check_network(lambda: probe_link(between_hosts=True))
    assert found.state == "note", found
    assert "/nowhere/libucp.so.0" in found.found
    assert "freescale_pg[ucx]" in found.cure


def test_ranks_that_do_not_come_together_are_a_failure() -> None:
    found = checks.check_shared_memory(always(LinkProbe(False, "", "no memory")))
    assert (found.state, found.found) == ("FAILED", "no memory")
    assert found.cure


def test_ranks_that_may_not_read_each_other_are_noted() -> None:
    reason = "shared memory proven; direct reads: Operation not permitted"
    found = checks.check_shared_memory(always(LinkProbe(True, "shm", reason)))
    assert found.state == "note"
    assert "ptrace" in found.cure


@pytest.mark.parametrize(
    ("devices", "route", "state"),
    [
        ([], "UCX 1.22.0 over tcp/eth0", "note"),
        (["mlx5_0"], "UCX 1.22.0 over tcp/eth0", "note"),
        (["mlx5_0"], "UCX 1.22.0 over rc_mlx5/mlx5_0:1", "ok"),
    ],
)
def test_rdma_is_used_where_it_is_there(devices: list[str], route: str, state: str) -> None:
    found = checks.check_rdma(devices, always(LinkProbe(True, "ucx", route)))
    assert found.state == state
    assert bool(found.cure) == (devices != [] and state == "note")


def test_an_interface_that_is_down_is_named() -> None:
    there = [Interface("eth0", True, 1500, 1000), Interface("eth1", False, 1500, None)]
    found = checks.check_interfaces("eth0,eth1,mlx5_0:1", there)
    assert found is not None
    assert (found.state, "eth1" in found.found, "eth0" in found.found) == ("FAILED", True, False)
    fine = checks.check_interfaces("eth0", there)
    assert fine is not None
    assert fine.state == "ok"
    assert checks.check_interfaces("", there) is None


def test_interfaces_are_read_as_the_kernel_tells_them(tmp_path: Path) -> None:
    for name, state, rate in [("eth0", "up", "100000"), ("eth1", "down", "-1")]:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "operstate").write_text(state + "\n")
        (folder / "mtu").write_text("9000\n")
        (folder / "speed").write_text(rate + "\n")
    assert interfaces(tmp_path) == [
        Interface("eth0", True, 9000, 100_000),
        Interface("eth1", False, 9000, None),
    ]
    assert rdma_devices(tmp_path) == ["eth0", "eth1"]
    assert interfaces(tmp_path / "none") == []
    assert rdma_devices(tmp_path / "none") == []


def test_settings_and_interfaces_are_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FREESCALE_SPIN_US", "7")
    rows = {fact.name: fact.found for fact in facts()}
    assert rows["variable FREESCALE_SPIN_US"] == "7"
    assert "interface lo" in rows


def test_an_emulated_rate_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FREESCALE_EMULATED_LINK_RATE", raising=False)
    assert checks.check_experiments() is None
    monkeypatch.setenv("FREESCALE_EMULATED_LINK_RATE", "250MB")
    found = checks.check_experiments()
    assert found is not None
    assert (found.state, found.found) == ("note", "250MB")


@pytest.mark.parametrize("state", ["ok", "note", "FAILED"])
@pytest.mark.parametrize("as_json", [False, True])
def test_doctor_fails_if_a_check_does(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    state: checks.State,
    as_json: bool,
) -> None:
    answer = Check("a question", state, "an answer", "a meaning", "a cure")
    monkeypatch.setattr("freescale_pg.cli.doctor.CHECKS", (lambda: None, lambda: answer))
    assert main(["doctor", "--json"] if as_json else ["doctor"]) == int(state == "FAILED")
    said = capsys.readouterr().out
    if as_json:
        assert [row["state"] for row in json.loads(said)] == [state]
    for words in ("a question", "an answer", "a meaning", "a cure"):
        assert words in said


def test_info_of_a_job_shows_the_links_of_all_ranks() -> None:
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "freescale_pg.cli", "info", "--json"]
    said = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=100, check=True
    )
    links = json.loads(said.stdout)["links"]
    assert {(link["rank"], link["peer"]): link["transport"] for link in links} == {
        (0, 0): "self",
        (0, 1): "shm",
        (1, 0): "shm",
        (1, 1): "self",
    }


def test_a_command_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["inform"])
    assert caught.value.code == 2
    assert "inform" in capsys.readouterr().err
