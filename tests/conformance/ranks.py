"""How the ranks of torch's test classes start and how they must end."""

from typing import Any, ClassVar

import torch.multiprocessing
from torch.testing._internal.common_distributed import MultiProcContinuousTest, MultiProcessTestCase


class ForkedRanks(MultiProcessTestCase):
    """Ranks of one test each."""

    def _spawn_processes(self) -> None:
        # Forked ranks start four times as fast as spawned ones.
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    def _check_return_codes(self, fn: Any, elapsed_time: float) -> None:
        super()._check_return_codes(fn, elapsed_time)
        # torch looks at rank 0 only, once no rank has raised.
        if fn not in self.skip_return_code_checks:
            codes = [process.exitcode for process in self.processes]
            self.assertEqual(codes, codes[:1] * len(codes), msg="exit codes of the ranks")


class LastingRanks(MultiProcContinuousTest):
    """Ranks that serve all tests of a class."""

    processes: ClassVar[list[Any]]  # torch sets it

    @classmethod
    def tearDownClass(cls) -> None:
        super().tearDownClass()  # type: ignore[no-untyped-call]
        codes = [process.exitcode for process in cls.processes]
        assert not any(codes), f"exit codes of the ranks: {codes}"
