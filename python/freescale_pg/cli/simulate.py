"""``freescale simulate``: bubbles of a training on many ranks, and what removes them."""

import argparse
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from freescale_pg.simulate.cluster import Cluster
from freescale_pg.simulate.lengths import LengthDistribution, Lognormal, Zipf, read_lengths
from freescale_pg.simulate.load import Sizes
from freescale_pg.simulate.measured import fit_measured
from freescale_pg.simulate.modes import simulate
from freescale_pg.simulate.report import as_json, exposed_table, table
from freescale_pg.simulate.scenario import Scenario, StepCost
from freescale_pg.simulate.transformer import Transformer

# Lengths that are drawn when there is no file: enough that epochs differ little.
_DRAWN = 1 << 20
# Chunk by chunk, a step of so many ranks takes about a second.
_MOST_LINK_BY_LINK = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options; ``docs/simulation.md`` has the sources of their defaults."""
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    _add_machine(parser.add_argument_group("machine"))
    _add_data(parser.add_argument_group("data"))
    _add_model(parser.add_argument_group("model"))
    run = parser.add_argument_group("run").add_argument
    run("--steps", type=int, default=100, help="that are counted")
    run("--warm-up-steps", type=int, default=4, help="that go before them")
    run("--seed", type=int, default=0, help="of lengths and their order")
    run("--link-by-link", action="store_true", help="follow each chunk on each link; few ranks")
    run("--json", type=Path, metavar="FILE", help="write all that was found")


def _add_machine(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--ranks", type=int, default=256)
    add("--ranks-per-host", type=int, default=8)
    add("--nvlink-gigabytes-per-second", type=float, default=450.0, help="of a rank, each way")
    add("--nic-gigabits-per-second", type=float, default=400.0, help="of a rank, each way")
    add("--latency-microseconds", type=float, default=20.0, help="of an exchange of no size")
    add(
        "--slowdown-percent",
        type=float,
        default=18.9,
        help="that computing takes longer beside communication kernels",
    )


def _add_data(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--samples-per-rank", type=int, default=32, help="in each step")
    add("--lengths", choices=["zipf", "lognormal"], default="zipf", help="distribution")
    add("--zipf-exponent", type=float, default=1.2)
    add("--lognormal-median-tokens", type=float, default=200.0)
    add("--lognormal-sigma", type=float, default=1.0)
    add("--longest-tokens", type=int, default=4096, help="longer samples are cut")
    add("--lengths-file", type=Path, metavar="FILE", help=".npy, or text with one length a line")
    add(
        "--fit-lognormal",
        action="store_true",
        help="draw from the distribution fitted to --lengths-file, and not its own lengths",
    )
    add("--shared-percent", type=float, default=30.0, help="rows that the batch before had too")
    add("--distinct-percent", type=float, default=100.0, help="different rows, of a rank's tokens")


def _add_model(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--layers", type=int, default=8, help="blocks of HSTU")
    add("--width", type=int, default=1024, help="of a block")
    add("--teraflops", type=float, default=220.0, help="that a rank reaches")
    add("--memory-terabytes-per-second", type=float, default=3.35, help="of a rank's own memory")
    add(
        "--measured-steps",
        type=Path,
        metavar="FILE",
        help="JSON with lengths and seconds of steps, to fit the cost of a step to",
    )
    add("--embedding-dim", type=int, default=128)
    add("--element-bytes", type=int, default=4, help="of embeddings and their gradients")
    add("--id-bytes", type=int, default=8)
    add("--dense-megabytes", type=float, help="of dense gradients; by default the blocks' float32")
    add("--bucket-megabytes", type=float, default=25.0, help="of DDP's buckets")


def run(arguments: argparse.Namespace) -> int:
    """Simulates, and prints what was found; returns 0."""
    scenario = scenario_of(arguments)
    outcomes = simulate(scenario, link_by_link=arguments.link_by_link)
    given = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in vars(arguments).items()
        if name not in ("run", "json")
    }
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(as_json(outcomes, given), indent=1) + "\n")
    print(_summary(scenario))
    print(f"\n{table(outcomes)}\n\n{exposed_table(outcomes)}")
    starved = max(outcome.starved for outcome in outcomes)
    if starved:
        print(
            f"\n{starved} exchanges waited so long for more urgent ones that the scheduler would"
            " have let them climb, which this model does not; see docs/simulation.md"
        )
    return 0


def scenario_of(arguments: argparse.Namespace) -> Scenario:
    """Makes of the options what they describe.

    Raises:
        OSError: A file cannot be read.
        ValueError: A number is out of range, or a file holds something else.
    """
    _check(arguments)
    transformer = Transformer(
        arguments.layers,
        arguments.width,
        1e12 * arguments.teraflops,
        1e12 * arguments.memory_terabytes_per_second,
    )
    cluster = Cluster(
        arguments.ranks,
        arguments.ranks_per_host,
        1e9 * arguments.nvlink_gigabytes_per_second,
        1e9 / 8 * arguments.nic_gigabits_per_second,
        1e-6 * arguments.latency_microseconds,
    )
    return Scenario(
        cluster=cluster,
        sizes=_sizes(arguments, transformer),
        cost=_cost(arguments, transformer),
        lengths=_lengths(arguments),
        samples_per_rank=arguments.samples_per_rank,
        shared=arguments.shared_percent / 100,
        distinct=arguments.distinct_percent / 100,
        slowdown=arguments.slowdown_percent / 100,
        steps=arguments.steps,
        warm_up=arguments.warm_up_steps,
        seed=arguments.seed,
    )


def _check(arguments: argparse.Namespace) -> None:
    """What the parts of a scenario cannot name by its option."""
    positive = ["samples_per_rank", "steps", "embedding_dim", "element_bytes", "id_bytes"]
    positive += ["layers", "width", "teraflops", "memory_terabytes_per_second", "bucket_megabytes"]
    positive += ["ranks", "ranks_per_host", "nvlink_gigabytes_per_second"]
    positive += ["nic_gigabits_per_second", "longest_tokens"]
    for name in positive:
        if not getattr(arguments, name) > 0:
            raise ValueError(f"{_option(name)} must be positive, got {getattr(arguments, name)}")
    for name in ("warm_up_steps", "seed", "slowdown_percent", "latency_microseconds"):
        if not getattr(arguments, name) >= 0:
            raise ValueError(
                f"{_option(name)} must not be negative, got {getattr(arguments, name)}"
            )
    for name in ("shared_percent", "distinct_percent"):
        if not 0 <= getattr(arguments, name) <= 100:
            raise ValueError(
                f"{_option(name)} must be between 0 and 100, got {getattr(arguments, name)}"
            )
    if arguments.ranks > arguments.ranks_per_host and arguments.ranks % arguments.ranks_per_host:
        raise ValueError(
            f"--ranks {arguments.ranks} do not fill hosts of --ranks-per-host"
            f" {arguments.ranks_per_host}"
        )
    if arguments.dense_megabytes is not None and not arguments.dense_megabytes >= 0:
        raise ValueError(f"--dense-megabytes must not be negative, got {arguments.dense_megabytes}")
    if arguments.fit_lognormal and arguments.lengths_file is None:
        raise ValueError("--fit-lognormal fits the lengths of --lengths-file, which is not given")
    if arguments.link_by_link and arguments.ranks > _MOST_LINK_BY_LINK:
        raise ValueError(
            f"--link-by-link follows up to {_MOST_LINK_BY_LINK} ranks, got --ranks"
            f" {arguments.ranks}"
        )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _sizes(arguments: argparse.Namespace, transformer: Transformer) -> Sizes:
    dense = arguments.dense_megabytes
    left = transformer.gradient_bytes if dense is None else 1e6 * dense
    buckets = []
    while left > 0:
        buckets.append(min(left, 1e6 * arguments.bucket_megabytes))
        left -= buckets[-1]
    vector_bytes = arguments.embedding_dim * arguments.element_bytes
    return Sizes(vector_bytes, arguments.id_bytes, tuple(buckets))


def _cost(arguments: argparse.Namespace, transformer: Transformer) -> StepCost:
    if arguments.measured_steps is not None:
        return fit_measured(arguments.measured_steps)
    return StepCost(
        transformer.token_seconds, transformer.pair_seconds, transformer.optimizer_seconds
    )


def _lengths(arguments: argparse.Namespace) -> npt.NDArray[np.int64]:
    distribution: LengthDistribution
    if arguments.lengths_file is not None:
        lengths = read_lengths(arguments.lengths_file)
        if not arguments.fit_lognormal:
            cut: npt.NDArray[np.int64] = np.minimum(lengths, arguments.longest_tokens)
            return cut
        distribution = Lognormal.fitted(lengths)
    elif arguments.lengths == "zipf":
        distribution = Zipf(arguments.zipf_exponent, arguments.longest_tokens)
    else:
        distribution = Lognormal(
            arguments.lognormal_median_tokens, arguments.lognormal_sigma, arguments.longest_tokens
        )
    samples = max(_DRAWN, arguments.ranks * arguments.samples_per_rank)
    return distribution.draw(samples, arguments.seed)


def _summary(scenario: Scenario) -> str:
    cluster, lengths = scenario.cluster, scenario.lengths
    return (
        f"{cluster.ranks} ranks on {cluster.hosts} hosts, {scenario.samples_per_rank} samples on"
        f" each: {np.median(lengths):g} tokens in the median, {lengths.mean():.0f} on average,"
        f" {lengths.max()} at most; {scenario.steps} steps"
    )
