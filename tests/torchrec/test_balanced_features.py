"""The online balancer on TorchRec's own features."""

import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from freescale_pg import OnlineBalancer
from harness.launch import Launcher
from online_samples import history_of, lengths_of, numbers_of


def check_keyed_jagged(rank: int, size: int, weighted: bool) -> None:
    def keyed(numbers: torch.Tensor) -> KeyedJaggedTensor:
        """Key "a" has the history, "b" the numbers themselves, "c" nothing."""
        values, lengths = history_of(numbers)
        ones, zeros = torch.ones_like(numbers), torch.zeros_like(numbers)
        everything = torch.cat([values, numbers])
        return KeyedJaggedTensor(
            keys=["a", "b", "c"],
            values=everything,
            lengths=torch.cat([lengths, ones, zeros]).int(),
            weights=everything.double() / 3 if weighted else None,
        )

    numbers = numbers_of(rank, 0, 32)
    balancer = OnlineBalancer(None, lambda batch: lengths_of(batch[0]), counts="uneven")
    stream = [(numbers, keyed(numbers))] if rank < 2 else []
    (balanced,) = balancer.balance(stream)
    assert balanced.samples_moved > 0
    expected = keyed(balanced.batch[0])
    features = balanced.batch[1]
    assert features.keys() == expected.keys()
    assert torch.equal(features.values(), expected.values())
    assert torch.equal(features.lengths(), expected.lengths())
    assert features.lengths().dtype == torch.int32
    assert (features.weights_or_none() is not None) == weighted
    if weighted:
        assert torch.equal(features.weights(), expected.weights())
    returned = balanced.send_back(features)
    original = keyed(numbers if rank < 2 else numbers[:0])
    assert torch.equal(returned.values(), original.values())
    assert torch.equal(returned.lengths(), original.lengths())


@pytest.mark.parametrize("weighted", [False, True])
def test_keyed_jagged_tensors(launch: Launcher, weighted: bool) -> None:
    """The third rank learns from the others what it is sent."""
    launch(check_keyed_jagged, 3, weighted)
