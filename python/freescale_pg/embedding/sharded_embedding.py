"""Embedding tables whose rows or columns lie on all ranks of a group."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from freescale_pg._agreement import check_agreement
from freescale_pg._group import member_group
from freescale_pg._priority import Priority
from freescale_pg.balance.online.jagged import Jagged
from freescale_pg.embedding.exchange import EmbeddingExchange, State
from freescale_pg.embedding.lookup import Ids, Lookup, parse
from freescale_pg.embedding.optimizer import RowOptimizer, describe
from freescale_pg.embedding.placement import place
from freescale_pg.embedding.request import Demand, Request
from freescale_pg.embedding.shard import TableShard
from freescale_pg.embedding.table import EmbeddingTable, Pooling, Sharding, check_tables

# One rank's part of a sum of gradients, as this or as the mean over the ranks, as DDP makes it.
GradientScale = Literal["mean", "sum"]


class Source(Protocol):
    """Where a look-up gets its rows from, when they were fetched ahead."""

    def serve(
        self, inputs: Mapping[str, Ids], weights: Mapping[str, Tensor] | None
    ) -> dict[str, Tensor] | None:
        """Returns the result of a look-up; None: it must be fetched."""
        ...

    def settle(self) -> None:
        """Applies all gradients of steps that have ended."""
        ...

    def reset(self) -> None:
        """Settles, and forgets what was fetched."""
        ...


class _Shards(nn.Module):
    """Shards by the name of their table.

    ``nn.ModuleDict`` can have none with the name of one of its methods, such as ``items``.
    """

    def __init__(self, shards: Mapping[str, TableShard]) -> None:
        super().__init__()
        for name, shard in shards.items():
            self.add_module(name, shard)

    def __getitem__(self, name: str) -> TableShard:
        shard = self._modules[name]
        assert isinstance(shard, TableShard)
        return shard

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)


class _ShardedTables(nn.Module):
    """What a single table and a collection of them have in common."""

    def __init__(
        self,
        tables: Sequence[EmbeddingTable],
        *,
        group: dist.ProcessGroup | None,
        optimizer: RowOptimizer | None,
        gradients: GradientScale,
        dedup: bool,
        spread: bool,
        seed: int,
        dtype: torch.dtype,
        device: torch.device | str | None,
    ) -> None:
        super().__init__()
        self._group = member_group(group)
        given = tuple(tables)
        if optimizer is not None and not isinstance(optimizer, RowOptimizer):
            raise TypeError(
                "optimizer must be one of freescale_pg.embedding or None, got"
                f" {type(optimizer).__name__}"
            )

        def checked_facts() -> dict[str, object]:
            check_tables(given, self._group.size())
            if gradients not in ("mean", "sum"):
                raise ValueError(f"gradients must be 'mean' or 'sum', got {gradients!r}")
            return {
                **{f"table {table.name}": str(table) for table in given},
                "order of the tables": [table.name for table in given],
                "optimizer": describe(optimizer),
                "gradients": gradients,
                "dedup": dedup,
                "spread": spread,
                "seed": seed,
                "dtype": str(dtype),
            }

        check_agreement(
            "the ranks' embeddings",
            checked_facts,
            self._group.rank(),
            self._group.size(),
            self._group,
        )
        self.optimizer = optimizer
        self.scale = 1.0 / self._group.size() if gradients == "mean" else 1.0
        self.dedup = dedup
        self.placements = place(given, self._group.size(), spread=spread)
        where = torch.device("cpu" if device is None else device)
        self.tables = _Shards(
            {
                placement.table.name: TableShard(
                    placement, self._group, optimizer, seed=seed, dtype=dtype, device=where
                )
                for placement in self.placements
            }
        )
        self._by_feature = {
            feature: placement.table
            for placement in self.placements
            for feature in placement.table.features
        }
        self.exchange = EmbeddingExchange(self.placements, self.shards, self._group)
        self._source: Source | None = None
        # Autograd calls the backward of a fetch only for an input that needs a gradient.
        self._anchor = torch.zeros((), requires_grad=True)
        self.register_state_dict_pre_hook(_settle)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_reset)  # type: ignore[no-untyped-call]

    @property
    def shards(self) -> list[TableShard]:
        """This rank's shards, by table."""
        return [self.tables[name] for name in self.tables]

    def attach(self, source: Source) -> None:
        """Lets look-ups be served from what was fetched ahead.

        Raises:
            RuntimeError: Another source is attached, and may have gradients to apply.
        """
        if self._source is not None:
            raise RuntimeError(
                "the embedding's look-ups are overlapped already: close() or detach() that first"
            )
        self._source = source

    def detach(self, source: Source) -> None:
        """Lets look-ups go to the ranks again, if it was this source that served them."""
        if self._source is source:
            self._source = None

    def parse(
        self, inputs: Mapping[str, Ids], weights: Mapping[str, Tensor] | None = None
    ) -> list[Lookup]:
        """Brings inputs into order; see :func:`freescale_pg.embedding.lookup.parse`."""
        return parse(self._by_feature, inputs, weights)

    def parse_ahead(self, ids: Ids | Mapping[str, Ids]) -> list[Lookup]:
        """Brings the inputs of a later look-up into order; without weights."""
        if isinstance(ids, Mapping):
            return self.parse(ids)
        if len(self._by_feature) != 1:
            raise TypeError("ids of several features must be a dict, by feature")
        return self.parse(dict.fromkeys(self._by_feature, ids))

    def request(self, lookups: Sequence[Sequence[Lookup]]) -> Request:
        """Makes one request of all look-ups of a batch.

        Raises:
            ValueError, TypeError: One of them is impossible.
        """
        ids: dict[str, list[Tensor]] = {name: [] for name in self.tables}
        device = self.shards[0].weight.device
        for batch in lookups:
            for lookup in batch:
                lookup.check(device)
                ids[lookup.table.name].append(lookup.ids.reshape(-1))
        return Request(self.placements, list(ids.values()), dedup=self.dedup, device=device)

    def result(
        self, lookups: Sequence[Lookup], request: Request, vectors: Sequence[Tensor]
    ) -> dict[str, Tensor]:
        """Makes of fetched vectors what the user gets, by feature.

        Raises:
            ValueError: An id was not fetched.
        """
        index = {name: table for table, name in enumerate(self.tables)}
        results = {}
        for lookup in lookups:
            table = index[lookup.table.name]
            places = request.find(table, lookup.ids.reshape(-1))
            if places is None:
                raise ValueError(
                    f"rank {self._group.rank()}: feature {lookup.name} has ids in this step that"
                    " were not prefetched for it"
                )
            results[lookup.name] = lookup.vectors(places, vectors[table])
        return results

    def apply_gradients(
        self, sums: Sequence[tuple[Tensor, Tensor]], lr: float, steps: Sequence[int]
    ) -> None:
        """Applies the optimizer to this rank's rows.

        Args:
            sums: By table: rows, and the sums of their gradients over the ranks.
            lr: Learning rate.
            steps: By table: the step that they belong to.
        """
        assert self.optimizer is not None
        for shard, (rows, total), step in zip(self.shards, sums, steps, strict=True):
            if self.scale != 1:
                total.mul_(self.scale)
            shard.update(self.optimizer, rows, total, lr=lr, step=step)

    def check_backward(self) -> None:
        """Raises RuntimeError where the gradients of a look-up may not be applied at once."""
        if self._source is not None:
            raise RuntimeError(
                "backward of a look-up outside of a step: rows that were fetched ahead would be"
                " stale; close() or detach() the overlap first"
            )

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _look_up(
        self, inputs: Mapping[str, Ids], weights: Mapping[str, Tensor] | None
    ) -> dict[str, Tensor]:
        if self._source is not None:
            served = self._source.serve(inputs, weights)
            if served is not None:
                return served
            self._source.settle()
        lookups, request, demand = self._ask(inputs, weights)
        if self.optimizer is None:
            sources = [shard.weight for shard in self.shards]
        else:
            sources = [self._anchor]
        vectors: tuple[Tensor, ...] = _Fetch.apply(  # type: ignore[no-untyped-call]
            self, request, demand, *sources
        )
        return self.result(lookups, request, vectors)

    def _ask(
        self, inputs: Mapping[str, Ids], weights: Mapping[str, Tensor] | None
    ) -> tuple[list[Lookup], Request, Demand]:
        lookups: list[Lookup] = []
        request, problem = None, None
        try:
            lookups = self.parse(inputs, weights)
            request = self.request([lookups])
        # Whatever it is: the other ranks wait for this one.
        except Exception as error:
            problem = error
        state = State.PROBLEM if request is None else State.BATCH
        header = self.exchange.announce(request, state, Priority.URGENT).wait()
        self.exchange.check(header, problem)
        assert request is not None
        rows = self.exchange.ask(request, header, Priority.URGENT).wait()
        return lookups, request, self.exchange.demand(header, rows)


def _settle(tables: nn.Module, *_: Any) -> None:
    """What is saved must have all gradients."""
    assert isinstance(tables, _ShardedTables)
    if tables._source is not None:
        tables._source.settle()


def _reset(tables: nn.Module, *_: Any) -> None:
    """What was fetched is stale once other values are loaded."""
    assert isinstance(tables, _ShardedTables)
    if tables._source is not None:
        tables._source.reset()


class _Fetch(torch.autograd.Function):
    """Vectors from their holders, and gradients back to them."""

    @staticmethod
    def forward(
        ctx: Any, tables: _ShardedTables, request: Request, demand: Demand, *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.tables, ctx.request, ctx.demand = tables, request, demand
        coming = tables.exchange.answer(request, demand, (None, None), Priority.URGENT)
        vectors = request.empty_vectors(coming.tensor.dtype)
        request.store(coming.wait(), None, vectors)
        return tuple(vectors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        tables, request, demand = ctx.tables, ctx.request, ctx.demand
        tables.check_backward()
        coming = tables.exchange.give_back(request, demand, gradients, (None, None), Priority.HIGH)
        sums = demand.add_up(coming.wait(), None, None)
        if tables.optimizer is None:
            return (None, None, None, *_sparse(tables, sums))
        steps = next_steps(tables.shards)
        tables.apply_gradients(sums, tables.optimizer.lr, steps)
        return None, None, None, None


def next_steps(shards: Sequence[TableShard]) -> list[int]:
    """Counts a step for each table, and returns its number."""
    for shard in shards:
        shard.steps += 1
    return [shard.steps for shard in shards]


def _sparse(tables: _ShardedTables, sums: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    return [
        torch.sparse_coo_tensor(
            rows[None],
            total if tables.scale == 1 else total * tables.scale,
            shard.weight.shape,
            is_coalesced=True,
        )
        for shard, (rows, total) in zip(tables.shards, sums, strict=True)
    ]


class ShardedEmbeddingCollection(_ShardedTables):
    """Several embedding tables, looked up together, whose rows or columns lie on many ranks.

    A forward asks the holders for each distinct row once; the vectors come back at URGENT priority,
    in one exchange for all tables, and in the backward pass their gradients return at HIGH. There
    the holder adds up those of all ranks, in the order of the ranks, and applies the optimizer to
    the rows. Bags are pooled where they are used, so results do not depend on the number of ranks.

    All ranks call forward and backward in the same order, also with no ids: the loss must depend on
    the result on every rank (``result.sum() * 0`` is enough), or the others wait for its gradient.

    Args:
        tables: What to hold; the same on all ranks.
        group: The ranks that share the tables; None: the default group. Of any backend; priorities
            are freescale's.
        optimizer: Applied to the rows within the backward pass: :class:`SGD`,
            :class:`RowwiseAdagrad`, :class:`Adam`, or your own :class:`RowOptimizer`. None: the
            shards are parameters with sparse gradients, for an optimizer of your own; then keep
            them out of DDP with :func:`exclude_from_ddp`.
        gradients: ``"mean"``: of the ranks, as DDP's are. ``"sum"``.
        dedup: Ask for each row once, however often it occurs in the batch.
        spread: Spread neighbouring ids over the ranks, since popular ones are often neighbours; see
            ``freescale_pg/embedding/placement.py``. False: ranges of ids.
        seed: Of the initial values, which do not depend on the number of ranks.
        dtype: Of the values.
        device: Of the shards; None: the CPU.

    Attributes:
        optimizer: Change its ``lr`` between steps, as a schedule does.

    Raises:
        ValueError: There is no process group.
        TypeError: ``optimizer`` is none.
        RanksDisagreeError: On all ranks: they were given different tables or settings, or tables
            that can't stand beside each other.
    """

    def __init__(
        self,
        tables: Sequence[EmbeddingTable],
        *,
        group: dist.ProcessGroup | None = None,
        optimizer: RowOptimizer | None = None,
        gradients: GradientScale = "mean",
        dedup: bool = True,
        spread: bool = True,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(
            tables,
            group=group,
            optimizer=optimizer,
            gradients=gradients,
            dedup=dedup,
            spread=spread,
            seed=seed,
            dtype=dtype,
            device=device,
        )

    def forward(
        self, inputs: Mapping[str, Ids], weights: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Looks up one batch; collective.

        Args:
            inputs: For each feature ids, integers of any shape; or bags of them,
                ``Jagged(ids, lengths)``, as pooled tables need. Any number of them, none included.
                On the device of the shards, as the lengths and weights.
            weights: For features of pooled tables: what each vector is multiplied by; float, shape
                ``[ids]``. They get a gradient.

        Returns:
            For each feature the vectors, ``[*ids.shape, dim]``; pooled: ``[bags, dim]``. The mean
            of a bag is over the number of its ids, weighted or not.

        Raises:
            RanksDisagreeError: On all ranks, if the inputs of one are impossible.
            RuntimeError: A rank is lost, or the group's timeout has passed.
        """
        result: dict[str, Tensor] = self._look_up(inputs, weights)
        return result


class ShardedEmbedding(_ShardedTables):
    """One embedding table whose rows or columns lie on many ranks; a drop-in for ``nn.Embedding``.

    :class:`ShardedEmbeddingCollection` tells how it works, and what the arguments mean that are not
    told here.

    Args:
        num_embeddings: Rows; ids are 0 to ``num_embeddings - 1``.
        dim: Length of a row.
        sharding: See :class:`EmbeddingTable`.
        pooling: See :class:`EmbeddingTable`.
        std: Standard deviation of the initial values.
        name: Of the table, in state dicts and messages.

    Example:
        >>> items = ShardedEmbedding(10_000_000, 64, optimizer=RowwiseAdagrad(lr=0.05))
        >>> hidden = items(history)            # [n] to [n, 64]
    """

    def __init__(
        self,
        num_embeddings: int,
        dim: int,
        *,
        sharding: Sharding = "row",
        pooling: Pooling | None = None,
        group: dist.ProcessGroup | None = None,
        optimizer: RowOptimizer | None = None,
        gradients: GradientScale = "mean",
        dedup: bool = True,
        spread: bool = True,
        std: float = 1.0,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        name: str = "table",
    ) -> None:
        super().__init__(
            [EmbeddingTable(name, num_embeddings, dim, sharding, pooling, std=std)],
            group=group,
            optimizer=optimizer,
            gradients=gradients,
            dedup=dedup,
            spread=spread,
            seed=seed,
            dtype=dtype,
            device=device,
        )
        self.num_embeddings = num_embeddings
        self.dim = dim
        self._name = name

    @property
    def weight(self) -> Tensor:
        """This rank's shard; shape ``[rows, columns]``, rows in the order of positions.

        Under overlap, reading it is collective: gradients that are still on their way are applied.
        Change it by ``load_state_dict`` only: rows that were fetched ahead would be stale.
        """
        _settle(self)
        return self.shards[0].weight

    def forward(
        self, ids: Tensor, lengths: Tensor | None = None, weights: Tensor | None = None
    ) -> Tensor:
        """Looks up ids; collective. As :meth:`ShardedEmbeddingCollection.forward`.

        Args:
            ids: Integers; of any shape, or ``[n]`` if there are lengths.
            lengths: Ids in each bag, for a pooled table; integers, shape ``[bags]``.
            weights: For a pooled table, what each vector is multiplied by; float, shape ``[n]``.

        Returns:
            ``[*ids.shape, dim]``; pooled: ``[bags, dim]``.
        """
        given: Ids = ids if lengths is None else Jagged(ids, lengths)
        chosen = None if weights is None else {self._name: weights}
        result: Tensor = self._look_up({self._name: given}, chosen)[self._name]
        return result


def exclude_from_ddp(model: nn.Module) -> None:
    """Keeps shards that are parameters out of DDP; call it before DDP wraps ``model``.

    Shards with an optimizer of their own are no parameters, and need nothing.
    """
    mine = [
        f"{name}.parameter"
        for name, module in model.named_modules()
        if isinstance(module, TableShard) and "parameter" in dict(module.named_parameters())
    ]
    ignored: set[str] = set(getattr(model, "_ddp_params_and_buffers_to_ignore", ()))
    nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
        model, [*ignored, *mine]
    )
