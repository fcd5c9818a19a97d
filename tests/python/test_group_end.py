"""No thread of gloo outlives the examples: one that does may abort them."""

from pathlib import Path

import pytest

from harness.gloo_threads import check_end

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SHORT = ["--backend=gloo", "--data=synthetic", "--epochs=1", "--max-steps=2", "--dim=16"]


@pytest.mark.parametrize(
    ("program", "options"),
    [("tutorial/step0_plain.py", ["--samples=64"]), ("train_seqrec.py", SHORT)],
)
def test_threads_of_gloo_end_before_the_interpreter(program: str, options: list[str]) -> None:
    check_end(EXAMPLES / program, options)
