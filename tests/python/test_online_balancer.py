"""The online balancer on several processes."""

import copy
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import balance_reference as reference
import freescale_pg
from freescale_pg import OnlineBalancer
from freescale_pg._agreement import RanksDisagreeError
from freescale_pg.balance import BalancedBatch, Jagged, Quadratic
from freescale_pg.balance.global_batch import integer_costs
from harness.launch import Launcher
from online_samples import RADIX, history_of, lengths_of, numbers_of

COST = Quadratic(1, 1 / 1024)


def joined(lists: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(lists))


def batch_of(numbers: torch.Tensor) -> dict[str, Any]:
    values, lengths = history_of(numbers)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    nested = torch.nested.nested_tensor_from_jagged(-values.double()[:, None], offsets=offsets)
    return {
        "number": numbers,
        "history": Jagged(values, lengths.int()),
        "absent": None,
        "dense": [
            numbers[:, None].float() / torch.tensor([1.0, 2.0, 4.0]),
            (numbers % 2 == 0, numbers.to(torch.complex64), (numbers % 256).to(torch.uint8)),
        ],
        "nested": nested,
    }


def flat(value: Any) -> Iterator[torch.Tensor]:
    """All tensors of a batch."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from flat(each)
    elif isinstance(value, Jagged):
        yield from (value.values, value.lengths)
    elif isinstance(value, torch.Tensor) and value.is_nested:
        yield from (value.values(), value.offsets())
    elif value is not None:
        yield value


def check_fields(batch: dict[str, Any]) -> None:
    """Every field is what its sample's number says."""
    expected = batch_of(batch["number"])
    assert list(batch) == list(expected)
    assert type(batch["dense"][1]) is tuple
    for ours, theirs in zip(flat(batch), flat(expected), strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


def cost_of(batch: dict[str, Any]) -> npt.NDArray[np.float64]:
    return COST(batch["history"].lengths.numpy().astype(np.float64))


def origin_numbers(balanced: BalancedBatch, step: int) -> torch.Tensor:
    return (balanced.origin_ranks * RADIX + step) * RADIX + balanced.origin_places


def balance_stream(
    rank: int, size: int, counts: Any, samples: list[list[int]]
) -> list[tuple[list[int], float]]:
    """Rank r's stream has batches of ``samples[r]``; returns numbers and weight of each step."""
    batches = [batch_of(numbers_of(rank, step, n)) for step, n in enumerate(samples[rank])]
    balancer = OnlineBalancer(None, cost_of, counts=counts)
    steps = []
    for step, balanced in enumerate(balancer.balance(batches)):
        check_fields(balanced.batch)
        numbers = balanced.batch["number"]
        assert torch.equal(numbers, origin_numbers(balanced, step))
        results = {"doubled": numbers.double() * 2, "history": balanced.batch["history"]}
        returned = balanced.send_back(results)
        own = numbers_of(rank, step, samples[rank][step] if step < len(samples[rank]) else 0)
        values, lengths = history_of(own)
        assert torch.equal(returned["doubled"], own.double() * 2)
        assert torch.equal(returned["history"].values, values)
        assert torch.equal(returned["history"].lengths, lengths.int())
        steps.append((numbers.tolist(), balanced.loss_weight))
    assert balancer.stats().batches == len(steps)
    return steps


def check_steps(
    ranks: list[list[tuple[list[int], float]]], counts: str, samples: list[list[int]]
) -> None:
    """Every sample came exactly once, in its step, and the loads are even."""
    steps = max(len(of_rank) for of_rank in samples)
    assert [len(of_rank) for of_rank in ranks] == [steps] * len(ranks)
    for step in range(steps):
        came = [of_rank[step] if step < len(of_rank) else 0 for of_rank in samples]
        expected = [numbers_of(rank, step, n).tolist() for rank, n in enumerate(came)]
        held = [of_rank[step][0] for of_rank in ranks]
        assert sorted(joined(held)) == sorted(joined(expected))
        if counts == "equal":
            assert [len(of_rank) for of_rank in held] == came
        total = max(1, sum(came))
        weights = [len(ranks) * len(of_rank) / total for of_rank in held]
        assert [of_rank[step][1] for of_rank in ranks] == pytest.approx(weights)


def loads_of(held: list[list[int]]) -> npt.NDArray[np.float64]:
    return np.array([COST(lengths_of(torch.tensor(of_rank)).double().numpy()).sum()
                     for of_rank in held])  # fmt: skip


@pytest.mark.parametrize("counts", ["equal", "uneven"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_sample_arrives_once_with_all_its_fields(
    launch: Launcher, size: int, counts: str
) -> None:
    samples = [[32] * 4] * size
    ranks = launch(balance_stream, size, counts, samples)
    check_steps(ranks, counts, samples)
    for step in range(4):
        held = [of_rank[step][0] for of_rank in ranks]
        costs = COST(lengths_of(torch.tensor(joined(held))).double().numpy())
        whole, exponent = integer_costs(costs)
        floor = reference.floor_load(whole.tolist(), size, counts == "equal")
        assert loads_of(held).max() <= 1.05 * np.ldexp(floor, -exponent) * (1 + 1e-9)


@pytest.mark.parametrize("counts", ["equal", "uneven"])
def test_streams_may_end_at_different_times(launch: Launcher, counts: str) -> None:
    """One has no batch at all; batches of no samples, and of more than the gather has room for."""
    samples = [[8, 8, 0, 200, 8], [], [0, 8], [300, 7, 1]]
    check_steps(launch(balance_stream, 4, counts, samples), counts, samples)


def test_all_streams_may_be_empty(launch: Launcher) -> None:
    assert launch(balance_stream, 2, "equal", [[], []]) == [[], []]


def test_another_backend_does_as_well(launch: Launcher) -> None:
    samples = [[16, 16, 16], [16]]
    check_steps(launch(balance_stream, 2, "uneven", samples, backend="gloo"), "uneven", samples)


def check_even_loads(rank: int, size: int) -> tuple[float, float, float]:
    numbers = numbers_of(rank, 0, 128)
    balancer = OnlineBalancer(None, cost_of)
    (balanced,) = balancer.balance([batch_of(numbers)])
    stats = balancer.stats()
    assert (stats.batches, stats.skipped, stats.samples) == (1, 0, 128 * size)
    assert 0 < stats.samples_moved == balanced.samples_moved <= stats.samples / 20
    moved = balanced.origin_ranks != rank
    here = torch.tensor([int(moved.sum())])
    dist.all_reduce(here)
    assert here.item() == balanced.samples_moved
    # What the moved samples' tensors hold, and 8 bytes for each of their two lengths.
    tokens = int(lengths_of(balanced.batch["number"])[moved].sum())
    sent = torch.tensor([tokens * 16 + int(moved.sum()) * (8 + 12 + 1 + 8 + 1 + 16)])
    dist.all_reduce(sent)
    assert stats.bytes_moved == sent.item()
    load = torch.tensor([cost_of(balanced.batch).sum()])
    loads = [torch.empty_like(load) for _ in range(size)]
    dist.all_gather(loads, load)
    assert stats.after == pytest.approx(max(loads).item() / (sum(loads).item() / size))
    return stats.before, stats.after, stats.floor


@pytest.mark.parametrize("size", [2, 4])
def test_a_twentieth_of_128_samples_each_is_enough(launch: Launcher, size: int) -> None:
    before, after, floor = launch(check_even_loads, size)[0]
    assert before > 1.05 * floor
    assert after <= 1.05 * floor


def calls_of(op: str) -> dict[str, int]:
    return {row.priority: row.calls for row in freescale_pg.stats().ops if row.op == op}


def check_messages(rank: int, size: int, lengths: list[list[int]], exchanges: int) -> None:
    """Ranks come with one batch of these lengths; a step takes one gather and some exchanges."""
    tokens = torch.tensor(lengths[rank])
    batch = {"tokens": tokens, "a": torch.zeros(len(tokens)), "b": [tokens.int(), tokens > 1]}
    balancer = OnlineBalancer(None, lambda given: given["tokens"])
    planned = balancer.plan_async(batch)
    freescale_pg.reset_stats()
    balanced = balancer.apply(planned)
    assert balanced is not None
    assert (balanced.batch is batch) == (exchanges == 0)
    assert calls_of("all_to_all_single") == ({"LOW": exchanges} if exchanges else {})
    assert balancer.stats().skipped == (1 if exchanges == 0 else 0)
    assert balancer.stats().batches == 1
    freescale_pg.reset_stats()
    assert balancer.apply(balancer.plan_async(None)) is None
    assert [row.calls for row in freescale_pg.stats().ops] == [1]
    freescale_pg.reset_stats()
    balanced.send_back(balanced.batch)
    assert sum(row.calls for row in freescale_pg.stats().ops) == 2 * exchanges


@pytest.mark.freescale_only
@pytest.mark.parametrize(
    ("lengths", "exchanges"),
    [
        pytest.param([[5, 5], [5, 5]], 0, id="even"),
        pytest.param([[50, 50], [49, 49]], 0, id="within-tolerance"),
        pytest.param([[90, 1], [1, 1]], 0, id="floor-bound"),
        pytest.param([[0, 0], [0, 0]], 0, id="free"),
        pytest.param([[9, 8], [1, 2]], 1, id="uneven"),
    ],
)
def test_one_exchange_for_all_dtypes_and_none_where_it_would_not_help(
    launch: Launcher, lengths: list[list[int]], exchanges: int
) -> None:
    launch(check_messages, 2, lengths, exchanges)


def check_ahead(rank: int, size: int) -> list[int]:
    """Several batches planned before the first is applied, and a second epoch after the end."""
    balancer = OnlineBalancer(None, cost_of)
    seen = []
    for epoch in range(2):
        first = 3 * epoch
        planned = [
            balancer.plan_async(batch_of(numbers_of(rank, first + step, 150))) for step in range(3)
        ]
        planned.append(balancer.plan_async(None))
        for handle in planned[:-1]:
            balanced = balancer.apply(handle)
            assert balanced is not None
            check_fields(balanced.batch)
            seen += balanced.batch["number"].tolist()
        assert balancer.apply(planned[-1]) is None
        with pytest.raises(ValueError, match="applied before"):
            balancer.apply(planned[0])
    return seen


def test_batches_are_planned_ahead(launch: Launcher) -> None:
    expected = [n for rank in range(3) for step in range(6) for n in numbers_of(rank, step, 150)]
    assert sorted(joined(launch(check_ahead, 3))) == sorted(map(int, expected))


def inputs_of(numbers: torch.Tensor) -> torch.Tensor:
    return torch.stack([numbers.double().sin(), numbers.double().cos()], dim=1)


def check_gradient(rank: int, size: int, counts: Any) -> None:
    """DDP with weighted means against the gradient of each global batch."""
    samples = [[6, 4, 3], [6], [2, 4]]
    model = torch.nn.Linear(2, 1, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.5, -2.0]]))
    parallel = DistributedDataParallel(model)
    alone = copy.deepcopy(model)
    balancer = OnlineBalancer(None, lambda batch: lengths_of(batch), counts=counts)
    stream = [numbers_of(rank, step, n) for step, n in enumerate(samples[rank])]
    for step, balanced in enumerate(balancer.balance(stream)):
        parallel.zero_grad()
        losses = parallel(inputs_of(balanced.batch)).square().flatten()
        (losses.sum() / max(len(losses), 1) * balanced.loss_weight).backward()
        everything = [
            numbers_of(other, step, of_rank[step])
            for other, of_rank in enumerate(samples)
            if step < len(of_rank)
        ]
        alone.zero_grad()
        alone(inputs_of(torch.cat(everything))).square().mean().backward()
        for ours, expected in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, expected.grad, rtol=1e-12, atol=0)


@pytest.mark.parametrize("counts", ["equal", "uneven"])
def test_gradients_are_those_of_the_global_batch(launch: Launcher, counts: str) -> None:
    """In the last two steps some ranks have no samples."""
    launch(check_gradient, 3, counts)


def check_early_end(rank: int, size: int) -> None:
    """All stop after the second batch, with the gather of the third begun."""
    batches = [batch_of(numbers_of(rank, step, 8)) for step in range(5)]
    balancer = OnlineBalancer(None, cost_of)
    for step, balanced in enumerate(balancer.balance(batches)):
        check_fields(balanced.batch)
        if step == 1:
            break
    assert balancer.stats().batches == 2
    together = torch.ones(1)
    dist.all_reduce(together)
    assert together.item() == size


def test_all_may_stop_early(launch: Launcher) -> None:
    launch(check_early_end, 3)


def check_changing_structure(rank: int, size: int) -> None:
    """Rank 1 is over when the others come to know another structure."""
    balancer = OnlineBalancer(None, lambda batch: batch[0], counts="uneven")
    streams: list[list[Any]] = [
        [[torch.ones(2)], [torch.tensor([9.0, 8.0, 2.0]), torch.arange(3)]],
        [[torch.ones(2)]],
    ]
    last = list(balancer.balance(streams[rank]))[-1].batch
    assert len(last) == 2
    assert (len(last[0]), last[1].dtype) == (1 if rank else 2, torch.int64)
    assert last[0].tolist() == [torch.tensor([9.0, 8.0, 2.0])[place] for place in last[1]]


def test_structure_may_change_when_a_stream_is_over(launch: Launcher) -> None:
    launch(check_changing_structure, 2)


def check_subgroup(rank: int, size: int) -> list[int]:
    """Two groups, each balancing its own streams."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    balancer = OnlineBalancer(groups[rank % 2], cost_of)
    for other in groups:
        if not isinstance(other, dist.ProcessGroup):
            with pytest.raises(ValueError, match="with this rank in it"):
                OnlineBalancer(other, cost_of)
    (balanced,) = balancer.balance([batch_of(numbers_of(rank, 0, 16))])
    check_fields(balanced.batch)
    numbers: list[int] = balanced.batch["number"].tolist()
    assert {number // RADIX**2 % 2 for number in numbers} == {rank % 2}
    return numbers


def test_a_group_of_its_own(launch: Launcher) -> None:
    expected = [int(n) for rank in range(4) for n in numbers_of(rank, 0, 16)]
    assert sorted(joined(launch(check_subgroup, 4))) == expected


# --- What is wrong on one rank is an error on all -------------------------------------------------


def batch_for(case: str, rank: int) -> Any:
    """A batch of two samples that rank 1 spoils."""
    spoilt: dict[str, Any] = {
        "dtype": {"x": torch.ones(2, dtype=torch.int32)},
        "shape": {"x": torch.ones(2, 7)},
        "keys": {"y": torch.ones(2)},
        "kind": [torch.ones(2)],
        "string": {"x": ["a", "b"]},
        "samples": {"x": torch.ones(2), "y": torch.ones(3)},
    }
    return spoilt[case] if rank == 1 and case in spoilt else {"x": torch.ones(2)}


def costs_for(case: str, rank: int) -> Any:
    def fail(batch: Any) -> Any:
        raise RuntimeError("no such table")

    spoilt: dict[str, Any] = {
        "nan": lambda batch: [1.0, float("nan")],
        "negative": lambda batch: torch.tensor([-2, 1]),
        "infinite": lambda batch: np.array([1.0, np.inf]),
        "cost shape": lambda batch: torch.ones(2, 1),
        "cost error": fail,
    }
    return spoilt[case] if rank == 1 and case in spoilt else lambda batch: [1.0, 1.0]


def check_error(rank: int, size: int, case: str, messages: list[str]) -> None:
    tolerance = 1.1 if case == "tolerance" and rank == 1 else 1.05
    balancer = OnlineBalancer(None, costs_for(case, rank), tolerance=tolerance)
    planned = balancer.plan_async(batch_for(case, rank))
    with pytest.raises(RanksDisagreeError) as caught:
        balancer.apply(planned)
    for message in messages:
        assert message in str(caught.value)
    if messages[0].startswith("rank 1: "):
        assert (caught.value.__cause__ is not None) == (rank == 1)
    # All go on together.
    again = OnlineBalancer(None, lambda batch: batch["x"])
    x = torch.full((2,), float(rank))
    (balanced,) = again.balance([{"x": x}])
    assert torch.equal(balanced.send_back(balanced.batch["x"]), x)


@pytest.mark.parametrize(
    ("case", "messages"),
    [
        ("dtype", ["batch['x']: tensor torch.float32 [n] on ranks 0, 2 and tensor torch.int32 [n]",
                   "on rank 1"]),
        ("shape", ["tensor torch.float32 [n] on ranks 0, 2 and tensor torch.float32 [n, 7] on"]),
        ("keys", ["batch: dict of 'x' on ranks 0, 2 and dict of 'y' on rank 1",
                  "batch['y']: absent on ranks 0, 2 and tensor torch.float32 [n] on rank 1"]),
        ("kind", ["batch: dict of 'x' on ranks 0, 2 and list of 0 on rank 1"]),
        ("string", ["rank 1: TypeError: batch['x'][0] is of type str"]),
        ("samples", ["rank 1: ValueError: batch['y'] has 3 samples, but batch['x'] has 2"]),
        ("nan", ["rank 1: ValueError: cost_fn gives nan for sample 1 of 2"]),
        ("negative", ["rank 1: ValueError: cost_fn gives -2.0 for sample 0 of 2"]),
        ("infinite", ["rank 1: ValueError: cost_fn gives inf for sample 1 of 2"]),
        ("cost shape", ["rank 1: ValueError: cost_fn returned shape [2, 1] for a batch of 2"]),
        ("cost error", ["rank 1: RuntimeError: no such table"]),
        ("tolerance", ["the ranks' balancers differ in tolerance: 1.05 on ranks 0, 2 and 1.1 on"]),
    ],
)  # fmt: skip
def test_all_ranks_learn_what_is_wrong(launch: Launcher, case: str, messages: list[str]) -> None:
    launch(check_error, 3, case, messages)


def check_results(rank: int, size: int) -> None:
    balancer = OnlineBalancer(None, lambda batch: batch)
    (balanced,) = balancer.balance([torch.tensor([[9, 8], [1, 2]][rank])])
    assert balanced.samples_moved == 2
    with pytest.raises(
        RanksDisagreeError, match=r"^rank 1: ValueError: 3 results, but the batch has 2"
    ):
        balanced.send_back(torch.zeros(2 + rank))
    with pytest.raises(RanksDisagreeError, match=r"the ranks' results differ in results: tensor"):
        balanced.send_back(torch.zeros(2, 1 + rank))
    assert balanced.send_back(balanced.batch).tolist() == [[9, 8], [1, 2]][rank]
    (unmoved,) = balancer.balance([torch.ones(2)])
    if rank == 1:
        with pytest.raises(ValueError, match="3 results, but the batch has 2 samples"):
            unmoved.send_back(torch.zeros(3))


def test_results_must_fit_the_batch(launch: Launcher) -> None:
    launch(check_results, 2)


def check_arguments(rank: int, size: int) -> None:
    for name, value in (("tolerance", 0.9), ("tolerance", float("nan")), ("counts", "some")):
        with pytest.raises(ValueError, match=name):
            OnlineBalancer(None, cost_of, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="cost_fn"):
        OnlineBalancer(None, [1.0])  # type: ignore[arg-type]


def test_arguments_are_checked(launch: Launcher) -> None:
    launch(check_arguments, 1)


def test_a_process_group_is_needed() -> None:
    with pytest.raises(ValueError, match="init_process_group"):
        OnlineBalancer(None, cost_of)
