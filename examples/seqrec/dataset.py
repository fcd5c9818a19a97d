"""User histories, the leave-one-out split, and where the histories come from."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from seqrec import movielens, synthetic
from seqrec.interactions import DataError, Interaction, read_interactions

# Two items to train on (one input, one target), one to validate, one to test.
MIN_HISTORY = 4


@dataclass(frozen=True)
class Example:
    """One user's part in one split.

    Attributes:
        user: Number of the user; seeds the user's dropout masks.
        items: Input item ids, oldest first; int64, shape ``[length]``.
        targets: Item that follows each input; int64, shape ``[length]`` to train, ``[1]`` (the item
            after the last input) to evaluate.
        seen: Item ids that evaluation does not rank; int64, shape ``[any]``.
    """

    user: int
    items: Tensor
    targets: Tensor
    seen: Tensor


@dataclass(frozen=True)
class SequenceData:
    """All histories of a data set.

    Attributes:
        name: What to call the data in output.
        histories: Item ids of each user, oldest first; int64, shape ``[length]``, each at least
            ``MIN_HISTORY`` long.
        num_items: Size of the catalogue; ids are ``0 … num_items - 1``.
    """

    name: str
    histories: list[Tensor]
    num_items: int

    def training(self, max_length: int) -> list[Example]:
        """Returns the newest ``max_length`` pairs of each history without its last two items."""
        nothing = torch.empty(0, dtype=torch.int64)
        return [
            Example(user, history[:-3][-max_length:], history[1:-2][-max_length:], nothing)
            for user, history in enumerate(self.histories)
        ]

    def validation(self, max_length: int) -> list[Example]:
        """Returns examples whose target is the last item but one."""
        return [self._held_out(user, 2, max_length) for user in range(len(self.histories))]

    def test(self, max_length: int) -> list[Example]:
        """Returns examples whose target is the last item."""
        return [self._held_out(user, 1, max_length) for user in range(len(self.histories))]

    def popularity(self) -> Tensor:
        """Counts each item in the training parts; float32, shape ``[num_items]``."""
        items = torch.cat([history[:-2] for history in self.histories])
        return torch.bincount(items, minlength=self.num_items).float()

    def _held_out(self, user: int, from_end: int, max_length: int) -> Example:
        history = self.histories[user]
        before, target = history[:-from_end], history[-from_end]
        return Example(user, before[-max_length:], target.view(1), before[before != target])


def from_interactions(name: str, interactions: Sequence[Interaction]) -> SequenceData:
    """Orders interactions by user and time, and numbers users and items.

    Ids follow the sorted names, so that they say nothing about popularity. Users with fewer than
    ``MIN_HISTORY`` interactions are left out; their items stay in the catalogue.

    Raises:
        DataError: No user has ``MIN_HISTORY`` interactions.
    """
    item_ids = {item: i for i, item in enumerate(sorted({row.item for row in interactions}))}
    by_user: dict[str, list[Interaction]] = defaultdict(list)
    for row in interactions:
        by_user[row.user].append(row)
    histories = [
        torch.tensor([item_ids[row.item] for row in sorted(rows, key=lambda row: row.time)])
        for _, rows in sorted(by_user.items())
        if len(rows) >= MIN_HISTORY
    ]
    if not histories:
        most = max(Counter(row.user for row in interactions).values(), default=0)
        raise DataError(
            f"{name}: the longest history has {most} interactions, {MIN_HISTORY} are needed"
        )
    return SequenceData(name, histories, len(item_ids))


def load(source: str, cache: Path) -> tuple[SequenceData, str | None]:
    """Loads a data set on every rank; collective.

    Args:
        source: ``"ml-100k"``, ``"synthetic"``, or the path of a file for ``read_interactions``.
        cache: Folder that keeps the download of ``"ml-100k"``.

    Returns:
        The data, and a warning to show if they are not what was asked for.

    Raises:
        DataError: The file cannot be parsed or holds too little.
        OSError: The file cannot be read.
    """
    if source == "synthetic":
        return _stand_in(), None
    if source != "ml-100k":
        return from_interactions(Path(source).name, read_interactions(Path(source))), None
    failure = _fetch_once_per_host(cache)
    if failure is not None:
        warning = f"cannot get MovieLens-100k ({failure}); training on synthetic data instead"
        return _stand_in(), warning
    return from_interactions("ml-100k", read_interactions(movielens.cached_path(cache))), None


def _stand_in() -> SequenceData:
    return from_interactions("synthetic", synthetic.generate(synthetic.SyntheticSpec()))


def _fetch_once_per_host(cache: Path) -> str | None:
    """Lets one rank of each host download; returns to all ranks why any of them failed."""
    failure: str | None = None
    if dist.get_node_local_rank(fallback_rank=0) == 0:
        try:
            movielens.fetch(cache)
        except movielens.DownloadError as error:
            failure = str(error)
    failures: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(failures, failure)
    return next((reason for reason in failures if reason is not None), None)
