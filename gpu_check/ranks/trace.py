"""What torch's profiler has seen on the device."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from gpu_check.ranks.setting import Setting

# The profiler's own words.
KERNEL = "kernel"
_ON_DEVICE = (KERNEL, "gpu_memcpy", "gpu_memset")


class Trace:
    """The events of some calls."""

    def __init__(self, setting: Setting, calls: Callable[[], object]) -> None:
        """Profiles the calls, and all that they have the device do."""
        activities = [ProfilerActivity.CPU]
        if setting.on_gpu:
            activities.append(ProfilerActivity.CUDA)
        setting.synchronize()
        with profile(activities=activities) as profiler:
            calls()
            setting.synchronize()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(path))
            self._events = json.loads(path.read_text())["traceEvents"]

    def on_device(self) -> Counter[str]:
        """How many events of each kind the device had."""
        kinds = Counter(event.get("cat") for event in self._events)
        return Counter({kind: kinds[kind] for kind in _ON_DEVICE})

    def kernels(self) -> int:
        """How many kernels there were."""
        return self.on_device()[KERNEL]

    def calls_of(self, name: str) -> int:
        """How many events of the host have that name."""
        return sum(event.get("name") == name for event in self._events)
