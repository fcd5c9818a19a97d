"""Runs a program under torchrun on hosts that are emulated on this machine.

    python tools/run_on_emulated_hosts.py --hosts 2 --per-host 1 program.py [arguments]

The hosts are Linux namespaces: each has a network, a hostname, a /tmp and a /dev/shm of its own, as
in tests/multihost, and they reach nothing but each other. Files are the machine's, those in /tmp
only beside the program and in the current directory. Needs root, util-linux and iproute2. All is
gone when the program ends. Shows what the first host writes, and the rest if it fails.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

_TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path += [str(_TESTS / "multihost"), str(_TESTS / "python")]

from launcher import RanksFailed, torchrun  # noqa: E402
from namespaces import missing  # noqa: E402
from network import Network  # noqa: E402

_SECONDS = 24 * 3600.0


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line; ends the program with a usage message if a value is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=_count, default=2, help="how many; 2")
    parser.add_argument("--per-host", type=_count, default=1, help="ranks on each; 1")
    parser.add_argument("--rate", type=_count, default=None, help="bit/s of each host; no limit")
    parser.add_argument("program", help="path of a Python program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its own")
    return parser.parse_args(arguments)


def main() -> int:
    """Runs; returns the exit status."""
    options = parse()
    if reason := missing():
        print(f"run_on_emulated_hosts: {reason}", file=sys.stderr)
        return 1
    variables = {
        "GLOO_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    seen = [Path(options.program).resolve().parent, Path.cwd()]
    with (
        tempfile.TemporaryDirectory() as directory,
        Network(options.hosts, rate=options.rate, folders=seen) as network,
    ):
        try:
            torchrun(
                network,
                options.per_host,
                [options.program, *options.arguments],
                Path(directory),
                environment=variables,
                limit=_SECONDS,
                shown=True,
            )
        except RanksFailed as error:
            print(f"run_on_emulated_hosts: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
