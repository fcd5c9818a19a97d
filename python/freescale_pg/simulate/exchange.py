"""How many bytes each link carries for a collective."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from freescale_pg.simulate.cluster import Cluster

FloatArray = npt.NDArray[np.float64]

# The links of a rank, each way: the first axis of Exchange.port_bytes().
NVLINK_OUT, NVLINK_IN, NIC_OUT, NIC_IN = range(4)
PORTS = 4


class Exchange(Protocol):
    """What one collective moves between all ranks."""

    def port_bytes(self, cluster: Cluster) -> FloatArray:
        """Returns the bytes on each link of each rank; shape ``[PORTS, W]``."""

    def pair_bytes(self, cluster: Cluster) -> FloatArray:
        """Returns the bytes from each rank to each other; shape ``[W, W]``, its diagonal 0."""


@dataclass(frozen=True)
class FromHolders:
    """Each rank gets something of the rows that it asked for, from the ranks that hold them.

    Rows are spread evenly over all ranks (:mod:`freescale_pg.embedding.placement`), so what a rank
    asks for comes from each in equal parts, one of which is its own.

    Attributes:
        asked: Bytes for each rank, those of its own shard included; shape ``[W]``.
    """

    asked: FloatArray

    def port_bytes(self, cluster: Cluster) -> FloatArray:
        """Implements :class:`Exchange`."""
        part = self.asked / cluster.ranks
        here = cluster.sums_by_host(part)
        outside = float(part.sum()) - here
        away = cluster.ranks - cluster.host_ranks
        return np.stack([here - part, part * (cluster.host_ranks - 1), outside, part * away])

    def pair_bytes(self, cluster: Cluster) -> FloatArray:
        """Implements :class:`Exchange`."""
        pairs = np.tile(self.asked / cluster.ranks, (cluster.ranks, 1))
        np.fill_diagonal(pairs, 0.0)
        return pairs


@dataclass(frozen=True)
class ToHolders:
    """The way back: each rank sends something of its rows to the ranks that hold them.

    Attributes:
        sent: Bytes of each rank, those for its own shard included; shape ``[W]``.
    """

    sent: FloatArray

    def port_bytes(self, cluster: Cluster) -> FloatArray:
        """Implements :class:`Exchange`."""
        back = FromHolders(self.sent).port_bytes(cluster)
        forth: FloatArray = back[[NVLINK_IN, NVLINK_OUT, NIC_IN, NIC_OUT]]
        return forth

    def pair_bytes(self, cluster: Cluster) -> FloatArray:
        """Implements :class:`Exchange`."""
        pairs: FloatArray = FromHolders(self.sent).pair_bytes(cluster).T
        return pairs


@dataclass(frozen=True)
class AllReduce:
    """A sum over all ranks: each adds a part of it up, within its host first.

    The bytes are the least that a rank must send: 2·(g-1)/g of the buffer within a host of g ranks,
    and 2·(H-1)/H of its g-th part between H hosts (Thakur, Rabenseifner and Gropp 2005).

    Attributes:
        size: Bytes of the buffer.
    """

    size: float

    def port_bytes(self, cluster: Cluster) -> FloatArray:
        """Implements :class:`Exchange`."""
        near, far = self._to_each(cluster)
        columns = [near * (cluster.host_ranks - 1)] * 2 + [far * (cluster.hosts - 1)] * 2
        return np.repeat(np.array(columns)[:, None], cluster.ranks, axis=1)

    def pair_bytes(self, cluster: Cluster) -> FloatArray:
        """Implements :class:`Exchange`."""
        near, far = self._to_each(cluster)
        host, place = np.divmod(np.arange(cluster.ranks), cluster.host_ranks)
        same_host = host[:, None] == host
        same_place = place[:, None] == place
        pairs: FloatArray = np.where(same_host, near, np.where(same_place, far, 0.0))
        np.fill_diagonal(pairs, 0.0)
        return pairs

    def _to_each(self, cluster: Cluster) -> tuple[float, float]:
        """Returns the bytes to each rank of the host, and to that of the same place on others."""
        near = 2 * self.size / cluster.host_ranks
        return near, near / cluster.hosts
