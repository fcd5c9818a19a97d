"""Which device a rank of the example takes, and how its group then reduces."""

import pytest
import torch

from seqrec import device

GPU = torch.device("cuda", 0)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Returns those that were made current."""
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    return current


def test_ranks_take_devices_in_turn(
    two_gpus: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank, taken in enumerate([0, 1, 0, 1]):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        assert device.own_device("cuda") == torch.device("cuda", taken)
        assert two_gpus[-1] == torch.device("cuda", taken)
    assert device.own_device("cpu") == torch.device("cpu")
    monkeypatch.delenv("LOCAL_RANK")
    assert device.own_device("cuda") == GPU


@pytest.mark.parametrize(("ranks", "shared"), [("1", False), ("2", False), ("3", True)])
def test_ranks_that_share_a_device_exchange_what_they_reduce(
    two_gpus: list[torch.device], monkeypatch: pytest.MonkeyPatch, ranks: str, shared: bool
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    options = device.group_options("freescale", GPU)
    assert (options is not None) == shared
    assert options is None or options.reductions == "exchange"
    assert device.group_options("freescale", torch.device("cpu")) is None
    # Its options would be another backend's.
    assert device.group_options("nccl", GPU) is None
