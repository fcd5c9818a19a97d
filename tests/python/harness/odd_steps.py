"""Steps of a BubbleMeter that do not count, whatever it measures."""

from collections.abc import Callable, Sequence

import pytest

import freescale_pg as fs
from freescale_pg.observe import StepTime


def check_steps_that_do_not_count(
    meter: fs.BubbleMeter, steps: Callable[[], Sequence[StepTime]]
) -> None:
    """One within another one is refused, one that raises is none, and of three two are kept.

    Args:
        meter: It keeps two steps.
        steps: Returns those that it has.
    """
    with pytest.raises(RuntimeError, match="step 0 of this BubbleMeter has not ended"):  # noqa: SIM117
        with meter.step():
            with meter.step():
                pass
    with pytest.raises(KeyError), meter.step():
        raise KeyError
    assert tuple(steps()) == ()
    for _ in range(3):
        with meter.step():
            pass
    assert [step.number for step in steps()] == [1, 2]
