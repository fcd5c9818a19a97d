"""Trains a sequence recommender with a sharded item table.

Usage:

    torchrun --standalone --nproc-per-node=2 examples/train_seqrec.py --backend freescale

With --device cuda the ranks of a host take its GPUs in turn, and may share them.
"""

import sys

from seqrec.interactions import DataError
from seqrec.run import run
from seqrec.settings import parse


def main() -> int:
    """Runs; returns the exit status."""
    settings = parse()
    try:
        run(settings)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (OSError, DataError) as error:
        print(f"train_seqrec: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
