"""Tests that fail on freescale, each with the reason, and how many must pass.

The lists are those of one torch version, as suites differ between versions. An entry that no longer
fails in the way it says is an error, just as a failure without an entry.
"""

from dataclasses import dataclass

from conformance.configuration import DEBUG_MODES, Configuration

TORCH = "2.13"


@dataclass(frozen=True)
class ExpectedFailure:
    """One test that is known to fail.

    Attributes:
        suite: Where it is.
        test: "Class.method".
        says: Part of the failure's text, so that no other failure hides behind the entry.
        reason: Why it is not a defect of the backend.
        ranks: World sizes at which it fails; empty: at all of them.
        debug: Debug modes in which it fails.
    """

    suite: str
    test: str
    says: str
    reason: str
    ranks: tuple[int, ...] = ()
    debug: tuple[str, ...] = DEBUG_MODES

    def applies(self, configuration: Configuration) -> bool:
        """Whether it fails in this configuration."""
        at_size = not self.ranks or configuration.ranks in self.ranks
        return configuration.suite == self.suite and at_size and configuration.debug in self.debug


GLOO_ONLY = (
    "torch lets dist.monitored_barrier() through to groups of gloo only; BeyondGlooTest calls the"
    " method of the group"
)
GLOO_ONLY_SAYS = "monitored_barrier is only implemented for GLOO backend"

EXPECTED_FAILURES = (
    ExpectedFailure(
        "distributed",
        "DistributedTest.test_ddp_logging_data_cpu",
        says="'undefined' != 'freescale'",
        reason="DDP logs the type under which torch files a backend, and plug-ins have none. Ours"
        " is UNDEFINED, as TorchRec takes CUSTOM for a fake group.",
    ),
    ExpectedFailure(
        "distributed",
        "DistributedTest.test_sparse_all_reduce_sum",
        says="has layout Sparse but only torch.strided tensors can be moved",
        reason="Sparse tensors are refused: nothing in a recommender's training reduces them.",
    ),
    *(
        ExpectedFailure("distributed", f"DistributedTest.{test}", GLOO_ONLY_SAYS, GLOO_ONLY)
        for test in ("test_monitored_barrier_gloo", "test_monitored_barrier_gloo_subgroup")
    ),
    *(
        # Of a world of two, torch skips these.
        ExpectedFailure("distributed", f"DistributedTest.{test}", GLOO_ONLY_SAYS, GLOO_ONLY, (3,))
        for test in (
            "test_monitored_barrier_failure_order",
            "test_monitored_barrier_wait_all_ranks",
        )
    ),
)

# So many tests must pass, by suite and ranks: with less, some did not really run.
FLOORS = {
    ("distributed", 2): 96,
    ("distributed", 3): 118,
    ("continuous", 2): 94,
    ("continuous", 3): 94,
    ("dtensor", 2): 6,
    ("dtensor", 3): 6,
}
# Of as many, this share must pass on the backend beside it for a comparison to mean anything.
REFERENCE_SHARE = 0.9
