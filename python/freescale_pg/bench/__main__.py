"""One rank of a run that ``freescale bench`` has started."""

import sys
from pathlib import Path

from freescale_pg.bench.mode import be_rank

be_rank(Path(sys.argv[1]))
