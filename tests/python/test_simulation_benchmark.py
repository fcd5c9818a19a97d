"""The benchmarks of the simulator: small runs from end to end."""

import argparse
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from bubbles import line_of
from freescale_pg.bench.timed_training import changing_ids
from simulation import plan

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_small_run_compares_every_case() -> None:
    small = ("--ranks", "2", "--samples", "4", "--dim", "16", "--steps", "1", "--rate", "1e6")
    command = [
        sys.executable,
        str(BENCHMARKS / "simulation.py"),
        *small,
        "--bucket-bytes",
        "4e4",
        "--rounds",
        "1",
    ]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100).stdout
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in output.splitlines()]
    header, _, *cells = rows
    found = [dict(zip(header, row, strict=True)) for row in cells]
    assert [(row["schedule"], row["dealt out"]) for row in found] == [
        ("blocking", "in turn"),
        ("blocking", "balanced"),
        ("FIFO", "balanced"),
        ("prioritised", "in turn"),
        ("prioritised", "balanced"),
    ]
    for row in found:
        # Neither sleeps nor links are ever too fast, so no step is much shorter than predicted.
        assert float(row["measured ms"]) > 0.9 * float(row["predicted ms"]) > 0
        assert "within 10 %" in row["target"]


def options() -> argparse.Namespace:
    return argparse.Namespace(steps=3, samples=8, shared=0.25, dim=16, rate=1e6, compute=2.0)


def test_plan_deals_the_same_samples_and_shares_rows() -> None:
    in_turn, balanced = (plan(options(), 4, is_balanced=each) for each in (False, True))
    assert in_turn.rows.sum() == balanced.rows.sum()
    assert in_turn.seconds.mean() > 0
    ratio = [each.seconds.max(axis=1).sum() / each.seconds.mean() for each in (in_turn, balanced)]
    assert ratio[1] < ratio[0]
    assert balanced.fresh[0].sum() == 0
    np.testing.assert_array_equal(
        balanced.fresh[1:],
        np.minimum(np.rint(0.25 * balanced.rows[1:]).astype(int), balanced.rows[:-1]),
    )


def test_ids_change_as_planned() -> None:
    counts = [(6, 0), (4, 3), (8, 4), (2, 2), (5, 0)]
    batches = [set(ids.tolist()) for ids in changing_ids(counts, pool=50, rank=2)]
    assert [len(batch) for batch in batches] == [6, 4, 8, 2, 5]
    kept = [len(now & before) for before, now in pairwise(batches)]
    assert kept == [3, 4, 2, 0]
    assert all(100 <= each < 150 for batch in batches for each in batch)


def test_line_says_what_each_technique_removes() -> None:
    small = ("--ranks", "8", "--samples-per-rank", "16", "--steps", "3", "--warm-up-steps", "2")
    name, baseline, left, removed, *parts, target = line_of("small", small)
    assert name == "small"
    assert 0 < float(left) < float(baseline) < 100
    assert abs(sum(map(float, parts)) - float(removed)) < 0.3
    assert target == f"{'met' if float(removed) >= 90.3 else 'MISSED'} ≥ 90.3"
