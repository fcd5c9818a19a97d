"""The emulated cluster: what its table is made of, and a small run from end to end."""

import json
import math
import subprocess
import sys
import threading
import time
from dataclasses import replace
from itertools import chain, islice, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from emulated.emulation import Emulation, Feed
from emulated.rank_seconds import (
    NotedStep,
    RankNotes,
    RankSeconds,
    gone,
    last_asked,
    seconds_of,
    stragglers_part,
)
from emulated_cluster import BALANCE, BASELINE, MODES, check_same_batches, verdict
from freescale_pg.bench.clocks import HostClock
from freescale_pg.bench.noted_exchanges import ExchangeNotes, Key, Wait
from freescale_pg.bench.timed_training import take
from freescale_pg.observe.report import Blocked, StepTime
from freescale_pg.simulate.lengths import Zipf

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALL = Emulation(ranks=4, samples_per_rank=8, batches=6, compute_seconds=0.1, seed=3)
FIRST, SECOND = Key("group", 0), Key("group", 1)


# --- Batches and scales -----------------------------------------------------------------------


def feeds(emulation: Emulation, *, is_balanced: bool) -> list[Feed]:
    return [Feed(emulation, rank, is_balanced=is_balanced) for rank in range(emulation.ranks)]


def test_both_samplers_deal_the_same_global_batches() -> None:
    dealt = {}
    for is_balanced in (False, True):
        ranks = feeds(SMALL, is_balanced=is_balanced)
        computing = [[batch.computing for batch in feed.work().batches] for feed in ranks]
        assert [len(of_rank) for of_rank in computing] == [SMALL.batches] * SMALL.ranks
        steps = list(zip(*(feed.samples for feed in ranks), strict=True))
        loads = np.array([[each.total for each in of_rank] for of_rank in computing])
        dealt[is_balanced] = [sorted(np.concatenate(step).tolist()) for step in steps], loads
    (in_turn, plain), (balanced, even) = dealt[False], dealt[True]
    assert in_turn == balanced
    assert sorted(chain.from_iterable(in_turn)) == list(range(SMALL.batches * SMALL.ranks * 8))
    # The same compute in all, so the mean of a step is as asked for; and less on the heaviest.
    np.testing.assert_allclose(plain.sum(axis=0), even.sum(axis=0))
    np.testing.assert_allclose(plain.mean(), SMALL.compute_seconds)
    assert even.max(axis=0).sum() < plain.max(axis=0).sum()


def test_ids_are_shared_as_asked_for_and_belong_to_one_rank() -> None:
    of_ranks = []
    for feed in feeds(replace(SMALL, shared=0.5), is_balanced=True):
        work = feed.work()
        batches = [set(batch.ids.tolist()) for batch in islice(work.batches, 4)]
        for place, (before, now) in enumerate(pairwise(batches), start=1):
            assert len(now) == SMALL.rows(feed.samples[place])
            assert len(before & now) == min(round(0.5 * len(now)), len(before))
        assert max(max(batch) for batch in batches) < work.rows
        of_ranks.append(set().union(*batches))
    assert len(set().union(*of_ranks)) == sum(map(len, of_ranks))


def test_scale_keeps_the_ratio_of_computing_to_bytes() -> None:
    token_bytes = 2 * 4 * SMALL.dim
    tokens = float(SMALL.drawn.mean()) * SMALL.samples_per_rank
    cited = SMALL.cited_seconds / (tokens * token_bytes / SMALL.card_bytes_per_second)
    for changed in (
        SMALL,
        replace(SMALL, compute_seconds=3.0),
        replace(SMALL, link_bytes_per_second=1e6),
    ):
        sent = changed.thinning * tokens * token_bytes / changed.link_bytes_per_second
        assert changed.compute_seconds / sent == pytest.approx(cited)
    slower = replace(SMALL, card_bytes_per_second=SMALL.card_bytes_per_second / 4)
    assert slower.thinning == pytest.approx(4 * SMALL.thinning)
    assert sum(slower.buckets) == pytest.approx(4 * sum(SMALL.buckets), rel=1e-3)


@pytest.mark.parametrize(
    ("field", "value"),
    [("ranks", 0), ("samples_per_rank", 0), ("compute_seconds", 0.0), ("shared", 1.5)],
)
def test_impossible_numbers_are_named(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"{field} must be .*{value}"):
        replace(SMALL, **{field: value})


def test_scenario_is_the_unscaled_training() -> None:
    emulation = replace(SMALL, lengths=Zipf(1.1, 512))
    scenario = emulation.scenario(0.1, 5)
    assert scenario.lengths.max() <= 512
    assert scenario.cluster.hosts == SMALL.ranks
    assert sum(scenario.sizes.bucket_bytes) == pytest.approx(167772160 / 8)
    # Nothing of it depends on how it is scaled down.
    again = replace(emulation, compute_seconds=9.0, link_bytes_per_second=1e6).scenario(0.1, 5)
    assert again.sizes == scenario.sizes and again.cost == scenario.cost


# --- The slowdown that is put in --------------------------------------------------------------


class Endless:
    """A work that ends when it is told to."""

    def __init__(self) -> None:
        self.is_over = False

    def is_completed(self) -> bool:
        return self.is_over

    def wait(self) -> None:
        self.is_over = True


class Group:
    group_name = "group"


def test_computing_alone_is_not_slowed_down() -> None:
    begin = time.monotonic()
    assert take(0.02, 0.5, ExchangeNotes(HostClock())) == 0.0
    assert time.monotonic() - begin >= 0.02


def test_computing_beside_an_exchange_takes_longer() -> None:
    notes = ExchangeNotes(HostClock())
    notes.begin(Group(), Endless)
    begin = time.monotonic()
    slowed = take(0.04, 0.5, notes)
    assert slowed == pytest.approx(0.02)
    assert time.monotonic() - begin >= 0.06


class Brief(Endless):
    """A work that is over when it is asked for the second time."""

    polls = 0

    def is_completed(self) -> bool:
        self.polls += 1
        return self.polls > 1


def test_computing_is_slowed_down_only_while_the_exchange_goes_on() -> None:
    notes, work = ExchangeNotes(HostClock()), Brief()

    class Coming(threading.Event):
        """Lets the exchange begin in the middle of the computation."""

        def wait(self, timeout: float | None = None) -> bool:
            if work.polls == 0:
                notes.begin(Group(), lambda: work)
                return True
            return super().wait(timeout)

    notes.came = Coming()
    begin = time.monotonic()
    slowed = take(0.05, 0.5, notes)
    assert time.monotonic() - begin >= 0.05 + slowed - 1e-9
    assert slowed > 0
    # One that is over is not asked again.
    assert work.polls <= 2


def test_exchange_that_begins_wakes_who_computes() -> None:
    notes = ExchangeNotes(HostClock())
    assert not notes.came.is_set()
    notes.begin(Group(), Endless)
    assert notes.came.is_set()


def test_waiting_ends_an_exchange() -> None:
    notes = ExchangeNotes(HostClock())
    noted = notes.begin(Group(), Endless)
    assert notes.any_under_way()
    noted.wait()
    assert not notes.any_under_way()
    (wait,) = notes.waits
    assert wait.key == FIRST and notes.asked[FIRST] <= wait.begin <= wait.end
    assert notes.begin(Group(), Endless) is not noted
    assert set(notes.asked) == {FIRST, SECOND}


# --- Where the time goes ----------------------------------------------------------------------


def noted_step(
    begin: float, *waits: Wait, metered: StepTime | None = None, samples: tuple[int, ...] = ()
) -> NotedStep:
    return NotedStep(begin, begin + 10.0, 6.0, 0.5, waits, metered, samples)


def test_waits_are_divided_when_the_last_rank_asks() -> None:
    latest = last_asked([{FIRST: 1.0, SECOND: 7.0}, {FIRST: 3.0, SECOND: 2.0}])
    assert latest == {FIRST: 3.0, SECOND: 7.0}
    assert stragglers_part(Wait(FIRST, 1.0, 4.0), latest) == 2.0
    assert stragglers_part(Wait(FIRST, 3.5, 4.0), latest) == 0.0
    assert stragglers_part(Wait(SECOND, 5.0, 6.0), latest) == 1.0
    with pytest.raises(ValueError, match="thread"):
        stragglers_part(Wait(None, 5.0, 6.0), latest)


def test_parts_add_up() -> None:
    ranks = [
        RankNotes((noted_step(0.0, Wait(FIRST, 1.0, 3.0)),), {FIRST: 1.0}, 0.1),
        RankNotes((noted_step(0.0, Wait(FIRST, 2.0, 3.0)),), {FIRST: 2.0}, 0.2),
    ]
    found = seconds_of(ranks)
    assert (found.steps, found.elapsed, found.compute, found.slowdown) == (2, 20.0, 12.0, 1.0)
    assert (found.stragglers, found.communication, found.waited) == (1.0, 2.0, 3.0)
    assert found.processor == pytest.approx(0.3)
    assert found.bubble == pytest.approx(0.4)
    parts = found.stragglers + found.communication + found.slowdown + found.rest
    assert parts / found.elapsed == pytest.approx(found.bubble)
    assert found.disagreement == 0
    assert found + found == replace(found, **{k: 2 * v for k, v in vars(found).items()})


def test_meter_tells_where_it_can_see() -> None:
    blocked = (Blocked("all_reduce", "NORMAL", 1_000_000_000, 500_000_000),)
    metered = StepTime(0, 10_000_000_000, 8_500_000_000, 0, 0, blocked)
    # A wait for the thread beside has no exchange, and needs none here.
    step = noted_step(0.0, Wait(None, 1.0, 3.0), metered=metered)
    found = seconds_of([RankNotes((step,), {}, 0.0)])
    assert (found.stragglers, found.communication, found.waited) == (1.0, 0.5, 2.0)
    assert found.disagreement == pytest.approx(0.05)


def test_gone_is_against_the_baseline() -> None:
    baseline, left = RankSeconds(1, 10.0, 6.0), RankSeconds(1, 10.0, 9.0)
    assert gone(left, baseline) == pytest.approx(0.75)
    assert gone(left, RankSeconds(1, 10.0, 10.0)) == 0
    assert verdict(0.903) == "met ≥ 90.3"
    assert verdict(0.9029) == "MISSED ≥ 90.3"


def test_other_batches_are_noticed() -> None:
    def ranks(*samples: tuple[int, ...]) -> list[RankNotes]:
        return [RankNotes((noted_step(0.0, samples=each),), {}, 0.0) for each in samples]

    check_same_batches({BASELINE: ranks((0, 2), (1, 3)), BALANCE: ranks((3, 0), (2, 1))})
    with pytest.raises(RuntimeError, match=r"\+ balance trained on other global batches"):
        check_same_batches({BASELINE: ranks((0, 2), (1, 3)), BALANCE: ranks((0, 2), (1, 4))})


# --- End to end -------------------------------------------------------------------------------


def test_small_run_measures_every_mode(tmp_path: Path) -> None:
    assert not dist.is_initialized()
    path = tmp_path / "found.json"
    command = [
        *(sys.executable, str(BENCHMARKS / "emulated_cluster.py"), "--baseline", "freescale"),
        *("--ranks", "2", "--samples-per-rank", "4", "--compute-seconds", "0.05"),
        *("--rate", "5e6", "--steps", "2", "--rounds", "2", "--json", str(path)),
    ]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100).stdout
    lines = [line.split("|")[1:-1] for line in output.splitlines() if line.startswith("|")]
    header, _, *cells = [[cell.strip() for cell in line] for line in lines]
    rows = [dict(zip(header, row, strict=True)) for row in cells]
    assert [row["mode"] for row in rows] == [mode.name for mode in MODES]
    for row in rows:
        parts = ("stragglers %", "communication %", "slowdown %", "rest %")
        assert sum(float(row[part]) for part in parts) == pytest.approx(
            float(row["bubble %"]), abs=0.05
        )
        assert (float(row["slowdown %"]) == 0) == (row["mode"] in ("+ SM-free", MODES[-1].name))
    assert "≥ 90.3" in output
    rounds = json.loads(path.read_text())["rounds"]
    assert len(rounds) == 2
    for found in rounds:
        compute = [found[mode.name]["compute"] for mode in MODES]
        assert all(math.isclose(each, compute[0], rel_tol=1e-9) for each in compute)
        for each in found.values():
            assert each["steps"] == 4
            # Sleeps are never too short, and what the meter sees lies within the noted waits.
            assert each["rest"] >= -1e-6
            assert each["waited"] >= each["stragglers"] + each["communication"] > 0
