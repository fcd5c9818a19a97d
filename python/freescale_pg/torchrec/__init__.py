"""TorchRec over freescale: which priority its exchanges have. Needs TorchRec, see docs/torchrec.md.

>>> pipeline = TrainPipelineSparseDist(model, optimizer, device)
>>> print(freescale_pg.torchrec.prioritize(pipeline))
"""

try:
    import torchrec as _  # noqa: F401
except ImportError as error:
    raise ImportError(
        "freescale_pg.torchrec needs TorchRec; docs/torchrec.md has the lines that install it"
    ) from error

from freescale_pg.torchrec.groups import check_groups
from freescale_pg.torchrec.prioritized import Prioritized, prioritize
from freescale_pg.torchrec.stage import PRIORITIES, Stage

__all__ = ["PRIORITIES", "Prioritized", "Stage", "check_groups", "prioritize"]
