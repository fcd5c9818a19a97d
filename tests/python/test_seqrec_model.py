"""The packed model of the sequence recommender against plain forms of the same thing."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from seqrec.loss import draw_negatives, sampled_softmax_loss
from seqrec.model import PackedLayout, SequenceModel, attend

DIM = 16
LENGTHS = [13, 12, 7, 7, 3, 1, 1]


def make_model(dropout: float = 0.0) -> SequenceModel:
    torch.manual_seed(3)
    return SequenceModel(DIM, layers=2, heads=2, max_length=20, dropout=dropout)


def random_vectors(count: int = sum(LENGTHS)) -> Tensor:
    return torch.randn(count, DIM, generator=torch.Generator().manual_seed(4))


def run(model: SequenceModel, vectors: Tensor, lengths: list[int]) -> Tensor:
    output: Tensor = model(vectors, PackedLayout(lengths), list(range(len(lengths))))
    return output


def naive_attention(query_key_value: Tensor, lengths: list[int], heads: int) -> Tensor:
    outputs = []
    for part in torch.split(query_key_value, lengths):
        query, key, value = (
            x.view(len(part), heads, -1).transpose(0, 1) for x in part.chunk(3, dim=1)
        )
        scores = query @ key.transpose(1, 2) / math.sqrt(query.shape[2])
        allowed = torch.ones(len(part), len(part)).tril().bool()
        weights = scores.masked_fill(~allowed, -torch.inf).softmax(2)
        outputs.append((weights @ value).transpose(0, 1).reshape(len(part), -1))
    return torch.cat(outputs)


@pytest.mark.parametrize("lengths", [LENGTHS, [5], [4, 4, 4], [300, 299, 2, 1], [1]])
def test_packed_attention_is_attention_within_each_sequence(lengths: list[int]) -> None:
    packed = torch.randn(sum(lengths), 3 * DIM, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(sum(lengths), DIM, dtype=torch.float64)
    layout = PackedLayout(lengths)
    actual, expected = attend(packed, layout, 2), naive_attention(packed, lengths, 2)
    torch.testing.assert_close(actual, expected)
    (actual_gradient,) = torch.autograd.grad((actual * weights).sum(), packed)
    (expected_gradient,) = torch.autograd.grad((expected * weights).sum(), packed)
    torch.testing.assert_close(actual_gradient, expected_gradient)


def test_layout_groups_like_lengths_and_pads_little() -> None:
    lengths = sorted((int(math.exp(4 + i / 16)) for i in range(32)), reverse=True)
    layout = PackedLayout(lengths)
    padded = sum(group.sequences * group.width for group in layout.groups)
    assert padded <= sum(lengths) / (1 - 0.15)
    assert len(layout.groups) <= len(lengths) / 2
    assert layout.last.tolist() == [sum(lengths[: i + 1]) - 1 for i in range(32)]


def test_layout_lies_where_it_is_wanted() -> None:
    layout = PackedLayout(LENGTHS, torch.device("meta"))
    indices = [layout.positions, layout.last, *(group.slots for group in layout.groups)]
    assert {each.device.type for each in indices} == {"meta"}
    assert len(layout.positions) == sum(LENGTHS)


def test_packed_model_equals_one_sequence_at_a_time() -> None:
    model, vectors = make_model(), random_vectors()
    packed = run(model, vectors, LENGTHS)
    alone = [run(model, part, [len(part)]) for part in torch.split(vectors, LENGTHS)]
    torch.testing.assert_close(packed, torch.cat(alone), rtol=1e-5, atol=1e-5)


def test_model_does_not_look_ahead_nor_at_other_sequences() -> None:
    model, vectors = make_model(), random_vectors()
    before = run(model, vectors, LENGTHS)
    changed = vectors.clone()
    changed[18] *= -1  # The sixth token of the second sequence, which starts at 13.
    after = run(model, changed, LENGTHS)
    differs = (before != after).any(1).nonzero().squeeze(1).tolist()
    assert differs == list(range(18, 25))


def test_dropout_follows_the_seed_of_the_sequence() -> None:
    model, vectors = make_model(dropout=0.5), random_vectors(9)
    both = model(vectors, PackedLayout([5, 4]), [70, 71])
    second = model(vectors[5:], PackedLayout([4]), [71])
    torch.testing.assert_close(both[5:], second, rtol=1e-5, atol=1e-5)
    other_seed = model(vectors[5:], PackedLayout([4]), [72])
    assert not torch.allclose(second, other_seed, atol=1e-2)
    model.eval()
    assert torch.equal(
        model(vectors, PackedLayout([5, 4]), [1, 2]), model(vectors, PackedLayout([5, 4]), [3, 4])
    )


def test_negatives_are_distinct_ascending_and_bounded() -> None:
    generator = torch.Generator().manual_seed(5)
    drawn = draw_negatives(100, 30, generator)
    assert len(drawn.unique()) == 30
    assert drawn.tolist() == sorted(drawn.tolist())
    assert draw_negatives(100, 1000, generator).tolist() == list(range(100))


def sampled(predictions: Tensor, table: Tensor, targets: Tensor, negatives: Tensor) -> Tensor:
    return sampled_softmax_loss(
        predictions, table[targets], targets, table[negatives], negatives, len(table)
    )


def test_loss_over_the_whole_catalogue_is_cross_entropy() -> None:
    table = torch.randn(50, DIM, dtype=torch.float64, requires_grad=True)
    predictions = torch.randn(20, DIM, dtype=torch.float64)
    targets = torch.randint(50, (20,))
    actual = sampled(predictions, table, targets, torch.arange(50))
    expected = functional.cross_entropy(predictions @ table.T, targets, reduction="sum")
    torch.testing.assert_close(actual, expected)
    (actual_gradient,) = torch.autograd.grad(actual, table)
    (expected_gradient,) = torch.autograd.grad(expected, table)
    torch.testing.assert_close(actual_gradient, expected_gradient)


def test_sampled_loss_is_close_to_the_full_one() -> None:
    torch.manual_seed(6)
    table, predictions = torch.randn(2000, DIM), torch.randn(300, DIM) / 4
    targets = torch.randint(2000, (300,))
    full = sampled(predictions, table, targets, torch.arange(2000)) / 300
    negatives = draw_negatives(2000, 500, torch.Generator().manual_seed(7))
    few = sampled(predictions, table, targets, negatives) / 300
    assert abs(float(few - full)) < 0.03
