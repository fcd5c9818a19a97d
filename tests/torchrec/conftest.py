"""Fixtures of the tests with TorchRec."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch.distributed as dist

from harness.launch import Launcher, start_fork_server


@pytest.fixture(scope="session")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """Runs a body on several ranks, see :class:`harness.launch.Launcher`."""
    # TorchRec takes seconds to import: once, not on every rank.
    start_fork_server(["torchrec.distributed.train_pipeline"])
    store = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60)
    )
    yield Launcher("freescale", store, tmp_path_factory.mktemp("ranks"))
