"""The machine that a simulated training runs on."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Cluster:
    """Ranks on hosts, each rank with a link to its host's others and a network card of its own.

    Both links carry their rate each way at once.

    Attributes:
        ranks: World size.
        ranks_per_host: Of every host; with fewer ranks than that there is one host.
        nvlink_bytes_per_second: Rate of a rank's link to the ranks of its host; may be infinite.
        nic_bytes_per_second: Rate of a rank's card, for all other hosts; may be infinite.
        latency_seconds: From the moment that all ranks have asked for an exchange of no size to its
            end.
        chunk_bytes: What a link carries between two decisions of the scheduler.
        inline_bytes: Messages up to this size go at once, with their header; 0: none do, as between
            devices.
        limits_ingress: Whether what comes in is limited to the rates as well; not so on the
            emulated links of ``docs/adr/0009-emulated-link-rate.md``.

    Raises:
        ValueError: A number is out of range, or the hosts do not come out even.
    """

    ranks: int
    ranks_per_host: int
    nvlink_bytes_per_second: float
    nic_bytes_per_second: float
    latency_seconds: float = 0.0
    chunk_bytes: int = 128 << 10
    inline_bytes: int = 0
    limits_ingress: bool = True

    def __post_init__(self) -> None:
        for name in ("ranks", "ranks_per_host", "chunk_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}")
        for name in ("nvlink_bytes_per_second", "nic_bytes_per_second"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if not (math.isfinite(self.latency_seconds) and self.latency_seconds >= 0):
            raise ValueError(
                f"latency_seconds must be finite and not negative, got {self.latency_seconds}"
            )
        if self.ranks > self.ranks_per_host and self.ranks % self.ranks_per_host:
            raise ValueError(
                f"{self.ranks} ranks do not fill hosts of {self.ranks_per_host} ranks_per_host"
            )

    @property
    def host_ranks(self) -> int:
        """Ranks on each host."""
        return min(self.ranks, self.ranks_per_host)

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return self.ranks // self.host_ranks

    def host_of(self, rank: int) -> int:
        """Returns the host that a rank runs on."""
        return rank // self.host_ranks

    def sums_by_host(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Returns for each rank the sum over its host's ranks, itself included; shape ``[W]``."""
        sums = values.reshape(self.hosts, self.host_ranks).sum(axis=1)
        return np.repeat(sums, self.host_ranks)
