"""Random programs of collectives against a reference that each rank calculates by itself.

The contents of all tensors follow from the program, so a failure is replayed by what it prints:
put the program into an ``@example``. ``PROPERTY_EXAMPLES=1000`` runs that many for each world size,
others in every run; without it they are few and always the same.
"""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.data import BYTE_DTYPES
from harness.launch import Launcher
from harness.pool import Pool
from harness.program import (
    BLOCKING_ONLY,
    MESSAGES,
    MOVES,
    REDUCTIONS,
    SCALARS,
    Call,
    Program,
    memberships,
)

EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "0"))
USUAL_EXAMPLES = 60  # of each world size
MOST_CALLS = 6
# Seconds for all examples of one world size, and what shrinking may add.
LIMIT = 300.0 + 1.0 * EXAMPLES

pytestmark = [pytest.mark.freescale_only, pytest.mark.timeout(LIMIT)]

PROFILE = settings(
    max_examples=EXAMPLES or USUAL_EXAMPLES,
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)

# Rows of pieces: many empty ones, most of a few, now and then one that is announced and moves in
# chunks.
ROWS = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 5, 8, 17, 300, 2500])
TAILS = st.sampled_from([(), (), (1,), (3,), (2, 2), (0,), (16,)])

# What ATen can combine. torch itself refuses most reductions of complex numbers.
INTEGERS = ["uint8", "int8", "int16", "int32", "int64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
COMBINED = {
    "SUM": [*INTEGERS, *FLOATS, "bool", "complex64", "complex128"],
    "AVG": [*INTEGERS, *FLOATS],
    "PREMUL_SUM": FLOATS,
    "PRODUCT": [*INTEGERS, *FLOATS, "bool"],
    "MIN": [*INTEGERS, *FLOATS, "bool"],
    "MAX": [*INTEGERS, *FLOATS, "bool"],
    "BAND": [*INTEGERS, "bool"],
    "BOR": [*INTEGERS, "bool"],
    "BXOR": [*INTEGERS, "bool"],
}
MOVED = [str(dtype).removeprefix("torch.") for dtype in BYTE_DTYPES]

# The first ones are what this backend is for.
KINDS = st.sampled_from([*MOVES[:4], *MOVES, *REDUCTIONS, *MESSAGES, "barrier"])


@st.composite
def calls(draw: st.DrawFn, world: int, group: int) -> Call:
    """Any call on one group of a world."""
    size = len(memberships(world)[group])
    kind = draw(KINDS)
    op = draw(st.sampled_from(sorted(COMBINED))) if kind in REDUCTIONS else "SUM"
    dtypes = COMBINED[op] if kind in REDUCTIONS else MOVED
    numbers = draw(st.lists(ROWS, min_size=size * size, max_size=size * size))
    return Call(
        kind=kind,
        group=group,
        dtype=draw(st.sampled_from(dtypes)),
        rows=tuple(tuple(numbers[s * size : (s + 1) * size]) for s in range(size)),
        tail=draw(TAILS),
        scalar=kind in SCALARS and draw(st.integers(0, 7)) == 7,
        root=draw(st.integers(0, size - 1)),
        op=op,
        layouts=(draw(st.integers(0, 3)), draw(st.integers(0, 3))),
        priority=draw(st.none() | st.integers(0, 4)),
        blocking=kind in BLOCKING_ONLY or draw(st.integers(0, 3)) == 3,
        tag=draw(st.integers(0, 2)),
    )


def programs(world: int) -> st.SearchStrategy[Program]:
    """Any program of a world size."""
    groups = st.integers(0, len(memberships(world)) - 1)
    anywhere = groups.flatmap(lambda group: calls(world, group))
    return st.builds(
        Program,
        calls=st.lists(anywhere, min_size=1, max_size=MOST_CALLS).map(tuple),
        order=st.integers(0, 1000),
    )


@pytest.mark.parametrize("size", range(1, 10))
def test_random_programs(launch: Launcher, size: int) -> None:
    with Pool(launch, size, LIMIT) as pool:

        @PROFILE
        @given(programs(size))
        def every_program_does_what_the_reference_does(program: Program) -> None:
            pool.run(program)

        every_program_does_what_the_reference_does()
