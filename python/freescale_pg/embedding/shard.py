"""The part of one table that lies on this rank: its values, their optimizer state, checkpoints."""

import zlib
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import Shard as CutAlong

from freescale_pg.embedding.optimizer import RowOptimizer
from freescale_pg.embedding.placement import Placement

# Initial values are drawn in blocks of this many rows, each from a seed of its own, so that a rank
# draws its own rows only and yet the table is the same on any number of ranks.
_INITIAL_BLOCK = 4096

Saved: TypeAlias = torch.Tensor | DTensor


class TableShard(nn.Module):
    """This rank's shard of one table.

    With an optimizer the values are no parameter: DDP and the optimizer of the dense part must not
    touch them. Without one they are, and their gradient is sparse.

    Attributes:
        placement: Where the table lies.
        rank: Whose shard this is.
        state: The optimizer's, by name; shape ``[rows, columns]`` or ``[rows]``.
        steps: Gradients that were, or are about to be, applied by the optimizer.
    """

    def __init__(
        self,
        placement: Placement,
        group: dist.ProcessGroup,
        optimizer: RowOptimizer | None,
        *,
        seed: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.placement = placement
        self.rank = group.rank()
        self._group = group
        self._mesh: DeviceMesh | None = None
        self._shard = placement.shards[self.rank]
        values = _initial_values(placement, self.rank, seed, dtype).to(device)
        self._values: torch.Tensor | None = None
        if optimizer is None:
            self.parameter = nn.Parameter(values)
        else:
            self._values = values
        self._state_shapes = {} if optimizer is None else optimizer.state()
        self.steps = 0
        self.state = {
            name: torch.zeros(values.shape if kind == "element" else len(values)).to(values)
            for name, kind in self._state_shapes.items()
        }

    @property
    def weight(self) -> torch.Tensor:
        """The values; shape ``[rows, columns]``, rows in the order of positions."""
        return self.parameter if self._values is None else self._values

    @property
    def width(self) -> int:
        """Columns of this shard."""
        return len(self._shard.columns)

    @torch.no_grad()
    def update(
        self,
        optimizer: RowOptimizer,
        rows: torch.Tensor,
        gradients: torch.Tensor,
        *,
        lr: float,
        step: int,
    ) -> None:
        """Applies an optimizer to some rows.

        Args:
            optimizer: The one that the shard was made for.
            rows: Each at most once; int64, shape ``[n]``.
            gradients: Shape ``[n, width]``; overwritten.
            lr: Learning rate.
            step: Number of the step, from 1.
        """
        if not len(rows):
            return
        values = self.weight.index_select(0, rows)
        state = {name: kept.index_select(0, rows) for name, kept in self.state.items()}
        optimizer.update(values, gradients, state, lr=lr, step=step)
        self.weight.index_copy_(0, rows, values)
        for name, changed in state.items():
            self.state[name].index_copy_(0, rows, changed)

    @property
    def layout(self) -> torch.Tensor:
        """What must be the same where values are loaded: rows, dim, multiplier; int64."""
        table = self.placement.table
        return torch.tensor([table.num_embeddings, table.dim, self.placement.multiplier])

    # What follows overrides hooks of nn.Module. PyTorch names and calls them.

    def __getattr__(self, name: str) -> Any:
        """Finds state by the name that it is saved under, as DCP's get_model_state_dict() does."""
        state = self.__dict__.get("state", {})
        return state[name] if name in state else super().__getattr__(name)

    def _apply(self, fn: Callable[..., torch.Tensor], recurse: bool = True) -> "TableShard":
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self._values is not None:
            self._values = fn(self._values)
        self.state = {name: fn(kept) for name, kept in self.state.items()}
        return self

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        weight = self.weight if keep_vars else self.weight.detach()
        self._save(destination, prefix + "weight", weight)
        for name, kind in self._state_shapes.items():
            self._save(destination, prefix + name, self._saved_form(self.state[name], kind))
        destination[prefix + "layout"] = self.layout
        destination[prefix + "steps"] = torch.tensor(self.steps)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        problem = self._layout_problem(state_dict.get(prefix + "layout"))
        if problem is not None:
            error_msgs.append(f"{prefix}layout: {problem}")
            return
        expected = {"weight": self.weight} | self.state
        for name, own in expected.items():
            if prefix + name in state_dict:
                self._load(own, state_dict[prefix + name], prefix + name, error_msgs)
            elif strict and not self._is_elsewhere():
                missing_keys.append(prefix + name)
        if prefix + "steps" in state_dict:
            self.steps = int(state_dict[prefix + "steps"])
        known = {prefix + name for name in (*expected, "layout", "steps")}
        if strict:
            unexpected_keys += [
                key for key in state_dict if key.startswith(prefix) and key not in known
            ]

    def _save(self, destination: dict[str, Any], key: str, value: torch.Tensor) -> None:
        table = self.placement.table
        if table.sharding == "table":
            if not self._is_elsewhere():
                destination[key] = value
            return
        cut = 0 if table.sharding == "row" else 1
        shape = torch.Size((table.num_embeddings, table.dim)[: value.dim()])
        stride = torch.empty(shape, device="meta").stride()
        if self._mesh is None:
            self._mesh = DeviceMesh.from_group(self._group, value.device.type)
        destination[key] = DTensor.from_local(
            value, self._mesh, [CutAlong(cut)], run_check=False, shape=shape, stride=stride
        )

    def _is_elsewhere(self) -> bool:
        """Whether another rank holds the whole table, and alone saves it."""
        return self.placement.table.sharding == "table" and self._shard.holds_nothing

    def _saved_form(self, value: torch.Tensor, kind: str) -> torch.Tensor:
        """One value per row and shard of columns is repeated for each column.

        Then any number of ranks can cut it anew.
        """
        if kind == "row" and self.placement.table.sharding == "column":
            return value[:, None].expand(-1, self.width).contiguous()
        return value

    def _load(self, own: torch.Tensor, saved: Saved, key: str, error_msgs: list[str]) -> None:
        given = saved.to_local() if isinstance(saved, DTensor) else self._own_part(saved)
        if given.dim() > own.dim():
            given = _one_per_row(given) if given.shape[1] else torch.zeros_like(own)
        if given.shape != own.shape:
            error_msgs.append(
                f"{key}: this rank's part has shape {list(own.shape)}, the saved one"
                f" {list(given.shape)}"
            )
            return
        with torch.no_grad():
            own.copy_(given)

    def _own_part(self, whole: torch.Tensor) -> torch.Tensor:
        """Cuts this rank's part out of a whole table that was saved without DTensor."""
        rows, columns = self._shard.rows, self._shard.columns
        part = whole[rows.start : rows.stop]
        return part if part.dim() == 1 else part[:, columns.start : columns.stop]

    def _layout_problem(self, saved: torch.Tensor | None) -> str | None:
        own = self.layout.tolist()
        if saved is None or saved.tolist() == own:
            return None
        return (
            f"the saved table has (rows, dim, multiplier of the order) {tuple(saved.tolist())},"
            f" this one {tuple(own)}"
        )


def _one_per_row(repeated: torch.Tensor) -> torch.Tensor:
    """Undoes the repetition for each column; exactly, where the columns were cut as now."""
    first = repeated[:, 0]
    alike = (repeated == first[:, None]).all(dim=1)
    return torch.where(alike, first, repeated.mean(dim=1))


def _initial_values(placement: Placement, rank: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    table, shard = placement.table, placement.shards[rank]
    own = torch.empty(len(shard.rows), len(shard.columns), dtype=dtype)
    if shard.holds_nothing:
        return own
    columns = slice(shard.columns.start, shard.columns.stop)
    # Tables of the same size must not be alike.
    first_seed = (seed * 1_000_003 + zlib.crc32(table.name.encode())) % 2**31 << 32
    first_block = shard.rows.start // _INITIAL_BLOCK * _INITIAL_BLOCK
    for start in range(first_block, shard.rows.stop, _INITIAL_BLOCK):
        generator = torch.Generator().manual_seed(first_seed + start)
        count = min(_INITIAL_BLOCK, table.num_embeddings - start)
        block = torch.randn(count, table.dim, generator=generator) * table.std
        low, high = max(start, shard.rows.start), min(start + count, shard.rows.stop)
        own[low - shard.rows.start : high - shard.rows.start] = block[
            low - start : high - start, columns
        ]
    return own
