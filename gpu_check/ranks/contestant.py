"""Two backends that do the same, in turns, so that both meet the same state of the machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist

from gpu_check.ranks.setting import Setting

# NCCL_CTA_POLICY_ZERO: copy engines, where NCCL can.
_ZERO_CTA = 2


class Contestant:
    """A backend's group and memory for exchanges."""

    def __init__(self, setting: Setting, backend: str) -> None:
        """Makes its group; collective."""
        self.setting = setting
        self.backend = backend
        options = _zero_cta_options() if self._is_zero_cta else None
        group = dist.new_group(backend=backend, pg_options=options)
        assert isinstance(group, dist.ProcessGroup)
        self.group = group
        # The first call connects, which registering memory needs.
        first = torch.zeros(setting.size, device=setting.device)
        self.exchange(torch.zeros_like(first), first)
        setting.synchronize()

    @property
    def name(self) -> str:
        """For findings."""
        return f"{self.backend}, zero CTA" if self._is_zero_cta else self.backend

    @property
    def _is_zero_cta(self) -> bool:
        return self.setting.zero_cta and self.backend == "nccl"

    def allocate(self, elements: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Output and input of an exchange, of float32."""
        if self._is_zero_cta:
            return self._allocate_registered(elements)
        device = self.setting.device
        return torch.zeros(elements, device=device), torch.ones(elements, device=device)

    def _allocate_registered(self, elements: int) -> tuple[torch.Tensor, torch.Tensor]:
        """In windows that all ranks have registered: NCCL's copy engines need it."""
        backend = self.group._get_backend(self.setting.device)
        pool = torch.cuda.MemPool(backend.mem_allocator)
        with torch.cuda.use_mem_pool(pool):
            pair = (
                torch.zeros(elements, device=self.setting.device),
                torch.ones(elements, device=self.setting.device),
            )
        backend.register_mem_pool(pool, symm=True)  # type: ignore[attr-defined]
        _pools.append(pool)
        return pair

    def exchange(
        self, output: torch.Tensor, input: torch.Tensor, async_op: bool = False
    ) -> dist.Work | None:
        """An exchange of equal shares."""
        work: dist.Work | None = dist.all_to_all_single(
            output, input, group=self.group, async_op=async_op
        )
        return work


def _zero_cta_options() -> object:
    from torch.distributed import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options.config.cta_policy = _ZERO_CTA  # type: ignore[attr-defined]
    return options


# Memory of a pool is gone with the pool.
_pools: list[object] = []


def contestants(setting: Setting) -> list[Contestant]:
    """Ours, and the reference if there can be one; collective."""
    ours = Contestant(setting, "freescale")
    if setting.reference is None:
        setting.fact("reference", "none: ranks share a GPU, which NCCL refuses")
        return [ours]
    return [ours, Contestant(setting, setting.reference)]


def timed(setting: Setting, action: Callable[[], object]) -> float:
    """Seconds from a common start until the device is idle again; collective."""
    setting.synchronize()
    dist.barrier()
    begin = time.perf_counter()
    action()
    setting.synchronize()
    return time.perf_counter() - begin


def tell_ratio(setting: Setting, name: str, ours: list[float], theirs: list[float]) -> None:
    """The median over rounds of how many times longer ours took in the same round."""
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    setting.fact(f"{name}: ours / reference", median(ratios), "x")
