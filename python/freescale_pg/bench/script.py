"""What a benchmark that is one table does in its ``main``."""

import sys
from collections.abc import Callable

from freescale_pg.bench.launch import launch_or_exit
from freescale_pg.bench.ranks import Ranks, joined, started_as_rank
from freescale_pg.bench.roster import AbsentContestantError


def print_table_of(script: str, ranks: int, table: Callable[[Ranks], str]) -> None:
    """Runs as one of the ranks when a launcher started this process, else as the launcher.

    Args:
        script: path of the script, which is started again with its own arguments.
        ranks: how many of them.
        table: makes it, on every rank; rank 0 prints it.
    """
    if not started_as_rank():
        launch_or_exit(script, sys.argv[1:], ranks)
        return
    with joined() as here:
        try:
            text = table(here)
        except AbsentContestantError as error:
            raise SystemExit(str(error)) from None
        if here.rank == 0:
            print(text)
