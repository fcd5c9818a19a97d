"""Columns of lengths of every kind, without copies of the large ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from freescale_pg.balance.lengths import LengthColumn

VALUES = [5, 3, 8, 0, 1, 9, 2]


def arrow(build: Callable[[Any], Any]) -> Any:
    return build(pytest.importorskip("pyarrow", reason="pyarrow is not installed"))


def columns(folder: Path) -> dict[str, Callable[[], Any]]:
    """The same lengths in every type that is taken."""

    def memmap() -> Any:
        np.array(VALUES, dtype=np.uint16).tofile(folder / "lengths.bin")
        return np.memmap(folder / "lengths.bin", dtype=np.uint16, mode="r")

    return {
        "list": lambda: VALUES,
        "tuple": lambda: tuple(VALUES),
        "floats": lambda: [float(value) for value in VALUES],
        "array": lambda: np.array(VALUES, dtype=np.int32),
        "strided": lambda: np.repeat(np.array(VALUES), 3)[::3],
        "memmap": memmap,
        "tensor": lambda: torch.tensor(VALUES),
        "parameter": lambda: torch.tensor(VALUES, dtype=torch.float32, requires_grad=True),
        "arrow": lambda: arrow(lambda pa: pa.array(VALUES)),
        "arrow-chunks": lambda: arrow(lambda pa: pa.chunked_array([VALUES[:3], [], VALUES[3:]])),
    }


KINDS = list(columns(Path()))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_same_values_and_fingerprint(kind: str, tmp_path: Path) -> None:
    column = LengthColumn(columns(tmp_path)[kind]())
    assert len(column) == len(VALUES)
    assert column.gather(np.array([6, 0, 3, 3])).tolist() == [2.0, 5.0, 0.0, 0.0]
    assert column.fingerprint() == LengthColumn(np.array(VALUES, dtype=np.int64)).fingerprint()
    assert column.fingerprint().total == sum(VALUES)


def test_a_memory_mapped_file_stays_on_disk(tmp_path: Path) -> None:
    """A file of a terabyte, nearly all of it a hole: any copy or pass over it would fail."""
    path = tmp_path / "huge.bin"
    samples = 1 << 39
    with path.open("wb") as file:
        file.truncate(2 * samples)
    column = LengthColumn(np.memmap(path, dtype=np.uint16, mode="r", shape=(samples,)))
    assert len(column) == samples
    assert column.gather(np.array([0, samples - 1])).tolist() == [0.0, 0.0]
    assert column.fingerprint().samples == samples


def test_arrays_and_tensors_are_not_copied() -> None:
    for values in (np.array(VALUES), torch.tensor(VALUES)):
        column = LengthColumn(values)
        before = column.fingerprint()
        values[2] = 80
        assert column.gather(np.array([2])).tolist() == [80.0]
        assert column.fingerprint() != before


def test_fingerprint_depends_on_place_and_number() -> None:
    digests = {
        LengthColumn(values).fingerprint().digest for values in ([1, 2, 3], [3, 2, 1], [1, 2, 3, 0])
    }
    assert len(digests) == 3


def test_fingerprint_of_a_long_column_looks_at_an_even_part_of_it() -> None:
    values = np.ones(3 << 20, dtype=np.uint8)
    column = LengthColumn(values)
    places = column.sample()
    assert (places[0], places[-1]) == (0, len(values) - 1)
    assert len(places) == 65536
    assert len(set(np.diff(places))) <= 3
    before = column.fingerprint()
    values[places[1000]] = 2
    assert column.fingerprint() != before


@pytest.mark.parametrize(
    ("lengths", "error", "message"),
    [
        ([], ValueError, "empty"),
        (np.zeros(0), ValueError, "empty"),
        ([1.0, float("nan"), 2.0], ValueError, r"lengths\[1\] is nan"),
        ([1.0, 2.0, float("inf")], ValueError, r"lengths\[2\] is inf"),
        ([4, -7], ValueError, r"lengths\[1\] is -7"),
        (np.ones((2, 3)), ValueError, r"one dimension, got shape \(2, 3\)"),
        (7, ValueError, r"one dimension, got shape \(\)"),
        (["a", "b"], TypeError, "must be numbers, got dtype"),
        ([True, False], TypeError, "must be numbers, got dtype bool"),
        (torch.ones(2, dtype=torch.bfloat16), TypeError, "BFloat16"),
    ],
)
def test_bad_lengths_are_refused(lengths: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        LengthColumn(lengths)


def test_a_bad_value_deep_in_a_large_column_is_found() -> None:
    values = np.ones(3 << 20)
    values[(2 << 20) + 5] = -1
    with pytest.raises(ValueError, match=rf"lengths\[{(2 << 20) + 5}\] is -1"):
        LengthColumn(values)


def test_missing_values_are_refused() -> None:
    with pytest.raises(ValueError, match="2 missing values"):
        LengthColumn(arrow(lambda pa: pa.array([1, None, 3, None])))
