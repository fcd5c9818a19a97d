"""DTensor on a mesh of CPUs, on torch's ``DTensorTestBase`` and the models and checks beside it.

torch ships the base class without tests of its own.
"""

import unittest

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.testing._internal.distributed._tensor.common_dtensor import (
    DTensorTestBase,
    MLPModule,
    with_comms,
)

from conformance.ranks import ForkedRanks

EXTRA_ROWS = [0, 1]  # Beyond an even share: with one, the shards differ in size.


def load(backend: str, ranks: int) -> list[type[unittest.TestCase]]:
    """Returns the test classes for a world of ``ranks`` on ``backend``."""
    DTensorTest.backend_name = backend
    DTensorTest.ranks = ranks
    return [DTensorTest]


def numbered(rows: int, columns: int, start: int = 0) -> torch.Tensor:
    return (torch.arange(rows * columns, dtype=torch.float32) + start).reshape(rows, columns)


class DTensorTest(ForkedRanks, DTensorTestBase):
    backend_name = ""
    ranks = 0

    @property
    def world_size(self) -> int:
        return self.ranks

    @property
    def device_type(self) -> str:
        return "cpu"

    def init_pg(self, eager_init: bool, backend: str | None = None) -> None:
        # The base class knows a fixed list of backends.
        dist.init_process_group(
            self.backend_name,
            rank=self.rank,
            world_size=self.world_size,
            init_method=f"file://{self.file_name}",
        )

    def assert_same(self, actual: torch.Tensor, expected: torch.Tensor) -> None:
        self.assertEqual(actual, expected, rtol=0, atol=0)

    def share(self, whole: torch.Tensor, dim: int) -> torch.Tensor:
        """Returns this rank's part of what is sharded along ``dim``."""
        return whole.chunk(self.world_size, dim)[self.rank]

    @with_comms
    def test_rows_to_columns_to_whole(self) -> None:
        mesh = self.build_device_mesh()
        for extra in EXTRA_ROWS:
            whole = numbered(3 * self.world_size + extra, 2 * self.world_size + extra)
            by_rows = distribute_tensor(whole, mesh, [Shard(0)])
            self.assert_same(by_rows.to_local(), self.share(whole, 0))
            by_columns = by_rows.redistribute(mesh, [Shard(1)])
            self.assert_same(by_columns.to_local(), self.share(whole, 1))
            self.assert_same(by_columns.redistribute(mesh, [Replicate()]).to_local(), whole)
            self.assert_same(by_columns.full_tensor(), whole)

    @with_comms
    def test_partial_sums(self) -> None:
        mesh = self.build_device_mesh()
        for extra in EXTRA_ROWS:
            shape = (3 * self.world_size + extra, 4)
            partial = DTensor.from_local(numbered(*shape, start=self.rank), mesh, [Partial()])
            parts = [numbered(*shape, start=peer) for peer in range(self.world_size)]
            total = torch.stack(parts).sum(0)
            self.assert_same(partial.redistribute(mesh, [Replicate()]).to_local(), total)
            sharded = partial.redistribute(mesh, [Shard(0)])
            self.assert_same(sharded.to_local(), self.share(total, 0))

    @with_comms
    def test_operators_under_all_placements(self) -> None:
        mesh = self.build_device_mesh()
        left, right = numbered(6, 6), numbered(6, 6, start=40)
        self._test_op(mesh, torch.add, left, right)
        self._test_op(mesh, torch.mm, left, right)
        self._test_op(mesh, torch.softmax, left / 36, dim=1)

    @with_comms
    def test_gradient_through_redistribution(self) -> None:
        mesh = self.build_device_mesh()
        whole = numbered(2 * self.world_size, self.world_size)
        weight = numbered(2 * self.world_size, self.world_size, start=7)
        leaf = distribute_tensor(whole, mesh, [Shard(0)])
        leaf.requires_grad_()
        moved = leaf.redistribute(mesh, [Shard(1)])
        loss = (moved * distribute_tensor(weight, mesh, [Shard(1)])).sum()
        assert isinstance(loss, DTensor)
        loss.full_tensor().backward()
        assert isinstance(leaf.grad, DTensor)
        self.assert_same(leaf.grad.full_tensor(), weight)

    @with_comms
    def test_tensor_parallel_model(self) -> None:
        mesh = self.build_device_mesh()
        # A DTensor between the layers knows how wide they are where the shares differ.
        plan = {"net1": ColwiseParallel(use_local_output=False), "net2": RowwiseParallel()}
        alone, parallel = MLPModule("cpu"), parallelize_module(MLPModule("cpu"), mesh, plan)
        batch = numbered(8, 10) / 80
        for model in (alone, parallel):
            model(batch).square().sum().backward()
        self.assertEqual(parallel(batch), alone(batch))
        for name, parameter in parallel.named_parameters():
            assert isinstance(parameter.grad, DTensor)
            reference = alone.get_parameter(name).grad
            self.assertEqual(parameter.grad.full_tensor(), reference, msg=name)

    @with_comms
    def test_two_dimensional_mesh(self) -> None:
        """Groups of one rank beside the group of all, whichever comes first."""
        whole = numbered(2 * self.world_size, 3 * self.world_size)
        for shape in ((1, self.world_size), (self.world_size, 1)):
            mesh = init_device_mesh("cpu", shape, mesh_dim_names=("outer", "inner"))
            split, other = (1, 0) if shape[0] == 1 else (0, 1)
            tiled = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
            self.assert_same(tiled.to_local(), self.share(whole, split))
            turned = tiled.redistribute(mesh, [Shard(1), Shard(0)])
            self.assert_same(turned.to_local(), self.share(whole, other))
            self.assert_same(turned.full_tensor(), whole)
