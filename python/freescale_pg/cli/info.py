"""``freescale info``: what there is, and how ranks reach each other."""

import argparse
import dataclasses
import json
import os

from freescale_pg.diagnosis.facts import facts
from freescale_pg.diagnosis.links import JobLink, links_of_job, probe_link


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Prints what was found; in a job of torchrun on rank 0 alone, with the links of all ranks."""
    in_job = "WORLD_SIZE" in os.environ and "RANK" in os.environ
    links = links_of_job() if in_job else _probed_links()
    if links is None:
        return 0
    found = facts()
    if arguments.json:
        rows = {one.name: one.found for one in found}
        print(json.dumps({"facts": rows, "links": [dataclasses.asdict(one) for one in links]}))
        return 0
    width = max(len(one.name) for one in found)
    for one in found:
        print(f"{one.name:<{width}}  {one.found}")
    print(
        "\nlinks of this job" if in_job else "\nlinks, by two ranks that were started to try them"
    )
    for link in links:
        print(f"  rank {link.rank} to rank {link.peer}: {link.transport or 'none'}: {link.reason}")
    return 0


def _probed_links() -> list[JobLink]:
    probes = [probe_link(between_hosts=between) for between in (False, True)]
    return [JobLink(0, 1, probe.transport, probe.reason) for probe in probes]
