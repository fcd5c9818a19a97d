"""``python -m freescale_pg.cli`` is ``freescale``."""

import sys

from freescale_pg.cli.main import main

sys.exit(main())
