"""Interactions, synthetic data, splits and batches of the sequence recommender."""

from collections import Counter
from pathlib import Path

import pytest
import torch

from seqrec.batches import Batches, PackedBatch
from seqrec.dataset import Example, SequenceData, from_interactions
from seqrec.interactions import DataError, Interaction, read_interactions
from seqrec.synthetic import SyntheticSpec, generate

EXPECTED = [Interaction("7", "b", 20.0), Interaction("7", "a", 10.0), Interaction("8", "a", 5.0)]


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "recbole.inter",
            "item_id:token\ttimestamp:float\tuser_id:token\nb\t20\t7\na\t10\t7\na\t5\t8\n",
        ),
        ("blanks.txt", "7 b 4 20\n7  a 5 10\n\n8 a 1 5\n"),
        ("tabs.data", "7\tb\t4\t20\n7\ta\t5\t10\n8\ta\t1\t5\n"),
        ("colons.dat", "7::b::4::20\n7::a::5::10\n8::a::1::5\n"),
        ("header.csv", "userId,movieId,rating,timestamp\n7,b,4,20\n7, a, 5, 10\n8,a,1,5\n"),
    ],
)
def test_formats_are_read_alike(tmp_path: Path, name: str, text: str) -> None:
    assert read_interactions(write(tmp_path, name, text)) == EXPECTED


def test_third_plain_column_is_a_timestamp_only_if_no_rating_could_be_so_large(
    tmp_path: Path,
) -> None:
    rated = read_interactions(write(tmp_path, "rated", "u1 a 5\nu1 b 1\n"))
    timed = read_interactions(write(tmp_path, "timed", "u1 a 881250949\nu1 b 881250948\n"))
    assert [row.time for row in rated] == [0.0, 0.0]
    assert [row.time for row in timed] == [881250949.0, 881250948.0]


def test_inter_names_may_hold_blanks_and_commas(tmp_path: Path) -> None:
    path = write(tmp_path, "x.inter", "user_id:token\titem_id:token\nAnn, B\tThe Item\n")
    assert read_interactions(path) == [Interaction("Ann, B", "The Item", 0.0)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.txt", "1 2 3 4\n1 2 3\n", r"x\.txt:2: expected 4 fields, got 3"),
        ("x.txt", "1 2 3 4\n\n1 2 3 noon\n", r"x\.txt:3: expected a number, got 'noon'"),
        ("x.txt", "1 2 3 nan\n", r"x\.txt:1: expected a number, got 'nan'"),
        ("x.txt", "1 2 3 4 5\n", r"x\.txt:1: expected 'user item .*', got 5 fields"),
        ("x.txt", "user item\n", r"x\.txt: no interactions"),
        ("x.txt", "", r"x\.txt: no interactions"),
        ("x.inter", "user_id:token\trating:float\n1\t2\n", r"x\.inter:1: the header lacks item_id"),
        (
            "x.inter",
            "user_id:token\titem_id:token\n1\t2\n1\n",
            r"x\.inter:3: expected 2 fields, got 1",
        ),
        ("x.inter", "user_id:token\titem_id:token\n\t2\n", r"x\.inter:2: user or item is empty"),
    ],
)
def test_unreadable_line_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_interactions(write(tmp_path, name, text))


def test_binary_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not UTF-8"):
        read_interactions(path)


def test_histories_follow_time_and_equal_times_the_file() -> None:
    times = [("a", 3.0), ("b", 1.0), ("c", 2.0), ("d", 2.0), ("e", 9.0)]
    rows = [Interaction("u", item, time) for item, time in times]
    data = from_interactions("test", [Interaction("short", "z", 0.0), *rows])
    assert data.num_items == 6
    assert [history.tolist() for history in data.histories] == [[1, 2, 3, 0, 4]]


def test_too_short_histories_are_an_error() -> None:
    rows = [Interaction("u", str(i), 0.0) for i in range(3)]
    with pytest.raises(DataError, match="the longest history has 3 interactions, 4 are needed"):
        from_interactions("test", rows)


def test_leave_one_out() -> None:
    data = SequenceData("test", [torch.tensor([5, 4, 3, 2, 1])], num_items=6)
    (training,) = data.training(max_length=10)
    assert (training.items.tolist(), training.targets.tolist()) == ([5, 4], [4, 3])
    (validation,) = data.validation(max_length=2)
    assert (validation.items.tolist(), validation.targets.tolist()) == ([4, 3], [2])
    assert validation.seen.tolist() == [5, 4, 3]
    (test,) = data.test(max_length=3)
    assert (test.items.tolist(), test.targets.tolist()) == ([4, 3, 2], [1])
    assert data.popularity().tolist() == [0, 0, 0, 1, 1, 1]


def test_training_keeps_the_newest_pairs() -> None:
    data = SequenceData("test", [torch.arange(9)], num_items=9)
    (training,) = data.training(max_length=3)
    assert (training.items.tolist(), training.targets.tolist()) == ([3, 4, 5], [4, 5, 6])


def test_seen_target_is_still_ranked() -> None:
    data = SequenceData("test", [torch.tensor([1, 2, 3, 0, 1])], num_items=4)
    assert data.test(max_length=4)[0].seen.tolist() == [2, 3, 0]


SPEC = SyntheticSpec(users=200, items=300, median_length=30.0)


def test_synthetic_data_depend_on_the_seed_alone() -> None:
    assert generate(SPEC) == generate(SPEC)
    assert generate(SPEC) != generate(SyntheticSpec(200, 300, 30.0, seed=1))


def test_synthetic_data_are_long_tailed_and_without_repeats() -> None:
    rows = generate(SPEC)
    lengths = sorted(Counter(row.user for row in rows).values())
    assert len(lengths) == SPEC.users
    assert lengths[-1] > 3 * lengths[len(lengths) // 2]
    popularity = sorted(Counter(row.item for row in rows).values(), reverse=True)
    assert popularity[0] > 5 * popularity[len(popularity) // 2]
    assert len({(row.user, row.item) for row in rows}) == len(rows)


def test_synthetic_next_item_can_be_learned() -> None:
    data = from_interactions("synthetic", generate(SPEC))
    followers: dict[int, Counter[int]] = {}
    for history in data.histories:
        for item, following in zip(history.tolist(), history[1:].tolist(), strict=False):
            followers.setdefault(item, Counter())[following] += 1
    total = sum(counts.total() for counts in followers.values())
    best_four = sum(n for counts in followers.values() for _, n in counts.most_common(4))
    # Without structure the four commonest followers of an item would be little more than noise.
    assert best_four / total > 0.35


def examples_of(*lengths: int) -> list[Example]:
    histories = [torch.arange(length + 3) for length in lengths]
    return SequenceData("test", histories, num_items=max(lengths) + 3).training(max(lengths))


def batches_of(
    examples: list[Example], batch_size: int, world_size: int, **options: bool
) -> list[list[PackedBatch]]:
    """Every rank's share of every global batch of an epoch: by step, then by rank."""
    order = [
        Batches(
            examples,
            batch_size,
            rank=rank,
            world_size=world_size,
            seed=1,
            dim=8,
            check_ranks=False,
            **options,
        )
        for rank in range(world_size)
    ]
    assert len({len(batches) for batches in order}) == 1
    return [list(step) for step in zip(*(batches.epoch(2) for batches in order), strict=True)]


def users_of(step: list[PackedBatch]) -> list[int]:
    return [example.user for share in step if share.counts for example in share.examples]


LENGTHS = torch.randint(4, 60, (21,), generator=torch.Generator().manual_seed(2)).tolist()


@pytest.mark.parametrize("balance", [True, False])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_batches_cover_every_user_once(world_size: int, balance: bool) -> None:
    steps = batches_of(examples_of(*LENGTHS), 12, world_size, balance=balance)
    assert [len(users_of(step)) for step in steps] == [12, 9]
    everyone = [user for step in steps for user in users_of(step)]
    assert sorted(everyone) == list(range(21))
    assert everyone != list(range(21))
    for step in steps:
        assert {share.global_examples for share in step} == {len(users_of(step))}
        tokens = sum(len(share.targets) for share in step if share.counts)
        assert {share.global_targets for share in step} == {tokens}
        for share in step:
            assert share.lengths == sorted(share.lengths, reverse=True)
            assert len(share.items) == sum(share.lengths)


@pytest.mark.parametrize("balance", [True, False])
def test_global_batches_do_not_depend_on_ranks_or_balance(balance: bool) -> None:
    examples = examples_of(*LENGTHS)
    alone = [sorted(users_of(step)) for step in batches_of(examples, 6, 1)]
    for world_size in (2, 3):
        steps = batches_of(examples, 6, world_size, balance=balance)
        assert [sorted(users_of(step)) for step in steps] == alone


def test_a_batch_grows_to_a_multiple_of_the_ranks() -> None:
    assert [len(users_of(step)) for step in batches_of(examples_of(*LENGTHS), 7, 4)] == [8, 8, 5]


def test_a_rank_without_a_part_in_the_rest_keeps_in_step() -> None:
    rest = batches_of(examples_of(*range(5, 14)), 4, 4)[-1]
    assert len(users_of(rest)) == 1
    assert sorted(share.counts for share in rest) == [False, False, False, True]
    assert all(len(share.examples) == 1 for share in rest)


def test_balanced_shares_cost_alike() -> None:
    (step,) = batches_of(examples_of(100, 20, 90, 10, 60, 50, 55, 65), 8, 2)
    costs = [sum(length + length**2 / (6 * 8) for length in share.lengths) for share in step]
    assert max(costs) / min(costs) < 1.05


def test_imbalance_is_of_the_last_epoch() -> None:
    batches = Batches(
        examples_of(100, 20, 90, 10), 4, rank=0, world_size=2, seed=None, dim=8, check_ranks=False
    )
    list(batches.epoch(0))
    loads = batches.imbalance()
    assert loads.before > 1.5 > 1.2 > loads.after
