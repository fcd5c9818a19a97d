"""Batches taken apart into columns, cut, packed and put together again."""

from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from freescale_pg.balance import Jagged
from freescale_pg.balance.online.announcement import digest
from freescale_pg.balance.online.columns import (
    concatenate,
    empty_column,
    pack,
    sample_bytes,
    take,
    unpack,
)
from freescale_pg.balance.online.structure import (
    Structure,
    column_types,
    describe,
    put_together,
    take_apart,
)

PROFILE = settings(max_examples=200, derandomize=True, database=None, deadline=None)

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.int64,
    torch.float8_e4m3fn,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
)
TRAILING = ((), (3,), (2, 1), (0,))

Point = namedtuple("Point", ["x", "y"])


def some_rows(rows: int, dtype: torch.dtype, trailing: tuple[int, ...], seed: int) -> torch.Tensor:
    """Any bits, NaNs with a payload included."""
    size = rows * int(np.prod(trailing, dtype=np.int64)) * dtype.itemsize
    bits = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    if dtype == torch.bool:
        bits &= 1
    # From a list, since an array of no bytes has a stride of 0, which view() does not take.
    return torch.tensor(bits.tolist(), dtype=torch.uint8).view(dtype).view(rows, *trailing)


@st.composite
def leaves(draw: st.DrawFn, samples: int) -> Any:
    kind = draw(st.sampled_from(["dense", "jagged", "nested", "none"]))
    if kind == "none":
        return None
    dtype, trailing = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(TRAILING))
    seed = draw(st.integers(0, 1000))
    if kind == "dense":
        return some_rows(samples, dtype, trailing, seed)
    lengths = draw(st.lists(st.integers(0, 4), min_size=samples, max_size=samples))
    values = some_rows(sum(lengths), dtype, trailing, seed)
    if kind == "jagged":
        return Jagged(values, torch.tensor(lengths, dtype=torch.int32))
    offsets = torch.tensor([0, *np.cumsum(lengths).tolist()])
    return torch.nested.nested_tensor_from_jagged(values, offsets=offsets)


def nested(samples: int) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves(samples),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=3).map(tuple),
            st.dictionaries(st.text(max_size=2), inner, max_size=3),
            st.tuples(inner, inner).map(lambda pair: Point(*pair)),
        ),
        max_leaves=6,
    )


def rows_of(leaf: Any) -> list[bytes]:
    """Each sample's bytes, by plain slicing."""
    if isinstance(leaf, torch.Tensor) and not leaf.is_nested:
        return [bytes(row.reshape(-1).view(torch.uint8).tolist()) for row in leaf]
    if isinstance(leaf, Jagged):
        pieces = leaf.values.split(leaf.lengths.tolist())
    else:
        pieces = leaf.values().split(leaf.offsets().diff().tolist())
    return [bytes(piece.reshape(-1).view(torch.uint8).tolist()) for piece in pieces]


def equal(left: Any, right: Any, places: list[int]) -> bool:
    """Whether ``right`` is ``left``'s samples at ``places``."""
    if type(left) is not type(right):
        return False
    if left is None:
        return True
    if isinstance(left, dict):
        return list(left) == list(right) and all(equal(left[k], right[k], places) for k in left)
    if isinstance(left, list | tuple):
        pairs = zip(left, right, strict=True)
        return all(equal(a, b, places) for a, b in pairs)
    tensors = [(left, right)] if isinstance(left, torch.Tensor) else [
        (left.values, right.values), (left.lengths, right.lengths)
    ]  # fmt: skip
    same_types = all(a.dtype == b.dtype and a.layout == b.layout for a, b in tensors)
    old, new = rows_of(left), rows_of(right)
    return same_types and [old[place] for place in places] == new


@PROFILE
@given(st.data())
def test_cut_packed_and_joined_samples_are_the_same(data: st.DataObject) -> None:
    samples = data.draw(st.integers(0, 5))
    field = data.draw(leaves(samples).filter(lambda leaf: leaf is not None))
    batch = {"rest": data.draw(nested(samples)), "field": field}
    places = data.draw(st.permutations(range(samples)))
    cut = data.draw(st.integers(0, samples))
    parts = take_apart(batch)
    assert parts.samples == samples
    types = column_types(parts.structure)
    sizes = sample_bytes(parts.columns, samples)
    joined = []
    for chosen in (places[:cut], places[cut:]):
        indices = torch.tensor(chosen, dtype=torch.int64)
        packed = pack([take(column, indices) for column in parts.columns])
        assert len(packed) == int(sizes[indices].sum())
        joined.append(unpack(types, len(chosen), packed))
    columns = [concatenate(column) for column in zip(*joined, strict=True)]
    assert equal(batch, put_together(parts.structure, columns), list(places))


@PROFILE
@given(st.data())
def test_structure_does_not_depend_on_the_samples(data: st.DataObject) -> None:
    batch = {"field": torch.zeros(3), "rest": data.draw(nested(3))}
    structure = take_apart(batch).structure
    nothing = put_together(structure, [empty_column(t) for t in column_types(structure)])
    assert equal(batch, nothing, [])
    assert take_apart(nothing).structure == structure
    assert digest(take_apart(nothing).structure) == digest(structure)


DIFFERENT: list[Any] = [
    torch.zeros(2),
    torch.zeros(2, dtype=torch.int32),
    torch.zeros(2, 1),
    [torch.zeros(2)],
    (torch.zeros(2),),
    {"a": torch.zeros(2)},
    {"b": torch.zeros(2)},
    {"a": torch.zeros(2), "b": None},
    {"b": None, "a": torch.zeros(2)},
    Jagged(torch.zeros(2), torch.ones(2, dtype=torch.int64)),
    Jagged(torch.zeros(2), torch.ones(2, dtype=torch.int32)),
    Jagged(torch.zeros(2, 1), torch.ones(2, dtype=torch.int64)),
    torch.nested.nested_tensor_from_jagged(torch.zeros(2), offsets=torch.arange(3)),
    Point(torch.zeros(2), None),
    Point(None, torch.zeros(2)),
    (torch.zeros(2), None),
]


def test_every_difference_shows_in_digest_and_description() -> None:
    structures: list[Structure] = [take_apart(batch).structure for batch in DIFFERENT]
    assert len({digest(structure) for structure in structures}) == len(DIFFERENT)
    assert len({tuple(describe(structure)) for structure in structures}) == len(DIFFERENT)


def test_what_is_not_laid_out_plainly_is_moved_as_it_reads() -> None:
    complex_values = torch.arange(6).view(3, 2).to(torch.complex64) * (1 + 2j)
    offsets, lengths = torch.tensor([0, 3, 6, 8]), torch.tensor([2, 0, 1])
    batch = OrderedDict(
        transposed=torch.arange(12).view(4, 3).t(),
        conjugate=complex_values.conj(),
        negative=complex_values.conj().imag,
        expanded=torch.ones(1, 2).expand(3, 2),
        holes=torch.nested.nested_tensor_from_jagged(
            torch.arange(8), offsets=offsets, lengths=lengths
        ),
    )
    parts = take_apart(batch)
    order = torch.tensor([2, 0, 1])
    columns = unpack(
        column_types(parts.structure), 3, pack([take(each, order) for each in parts.columns])
    )
    result = put_together(parts.structure, columns)
    for name in ("transposed", "conjugate", "negative", "expanded"):
        assert torch.equal(result[name], batch[name][order])
    assert [row.tolist() for row in result["holes"].unbind()] == [[6], [0, 1], []]


def test_empty_arrays_may_have_any_stride() -> None:
    empty = torch.from_numpy(np.empty(0, dtype=np.int64))
    assert empty.stride() == (0,)
    parts = take_apart({"dense": empty, "jagged": Jagged(empty, empty)})
    packed = pack(parts.columns)
    assert packed.dtype == torch.uint8
    assert not len(packed)
    columns = unpack(column_types(parts.structure), 0, packed)
    assert equal({"dense": empty}, {"dense": columns[0].values}, [])


def test_packed_bytes_must_be_as_many_as_belong_there() -> None:
    types = column_types(take_apart(torch.zeros(1, 2)).structure)
    with pytest.raises(ValueError, match="15 packed bytes end before byte 16"):
        unpack(types, 2, torch.zeros(15, dtype=torch.uint8))
    with pytest.raises(ValueError, match="17 packed bytes, but 16 belong there"):
        unpack(types, 2, torch.zeros(17, dtype=torch.uint8))


LENGTHS = torch.tensor([1, 1])


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ({"user": ["ann", "bob"]}, TypeError, r"batch\['user'\]\[0\] is of type str"),
        ([torch.zeros(2), 3], TypeError, r"batch\[1\] is of type int"),
        ({1.5: torch.zeros(2)}, TypeError, r"batch: key 1.5 must be a string or an integer"),
        ({}, ValueError, "batch holds no tensor"),
        (None, ValueError, "batch holds no tensor"),
        (torch.tensor(1.0), ValueError, "batch: a scalar has no samples"),
        (torch.zeros(2, requires_grad=True), ValueError, "batch: requires a gradient"),
        (torch.zeros(2).to_sparse(), ValueError, "sparse_coo"),
        (torch.zeros(2, device="meta"), ValueError, "batch: is on meta"),
        (
            {"a": torch.zeros(2), "b": [torch.zeros(3)]},
            ValueError,
            r"batch\['b'\]\[0\] has 3 samples, but batch\['a'\] has 2",
        ),
        (Jagged(torch.zeros(3), LENGTHS), ValueError, "lengths: add up to 2, but there are 3 rows"),
        (Jagged(torch.zeros(2), LENGTHS - 2), ValueError, "length -1 is negative"),
        (Jagged(torch.zeros(2), LENGTHS.float()), ValueError, "lengths: must be integers"),
        (Jagged(torch.zeros(2), LENGTHS[None]), ValueError, "lengths: must be integers"),
        (
            torch.nested.nested_tensor([torch.zeros(2)], layout=torch.strided),
            ValueError,
            "layout torch.jagged",
        ),
        (
            torch.nested.nested_tensor_from_jagged(
                torch.zeros(2, 4), offsets=torch.tensor([0, 2])
            ).transpose(1, 2),
            ValueError,
            "dimension 1 of a nested tensor must be the ragged one",
        ),
    ],
)
def test_what_cannot_be_shared_out_is_refused(
    batch: object, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        take_apart(batch)
