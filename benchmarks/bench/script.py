"""What a benchmark that is one table does in its ``main``."""

import sys
from collections.abc import Callable

from bench.launch import launch_or_exit
from bench.ranks import Ranks, joined, started_as_rank


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
        text = table(here)
        if here.rank == 0:
            print(text)
