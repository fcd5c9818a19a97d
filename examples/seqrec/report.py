"""What a run shows: progress while it trains, tables when it is done. Only rank 0 prints."""

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from freescale_pg import OpStats
from freescale_pg.balance import EpochBalance
from seqrec.evaluate import Metrics
from seqrec.train import EpochResult


class Reporter:
    """Prints to the terminal: a progress bar where there is one, plain lines in any case.

    On other ranks than 0 every method does nothing.
    """

    def __init__(self, *, enabled: bool, total_steps: int) -> None:
        """Prepares.

        Args:
            enabled: Whether this rank prints.
            total_steps: Number of training steps.
        """
        self._console = Console(quiet=not enabled, highlight=False, soft_wrap=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not (enabled and self._console.is_terminal),
        )
        self._task = self._progress.add_task("training", total=total_steps)

    def __enter__(self) -> "Reporter":
        """Shows the progress bar."""
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Removes the progress bar."""
        self._progress.stop()

    def line(self, text: str) -> None:
        """Prints a line."""
        self._console.print(text, markup=False)

    def advance(self) -> None:
        """Counts a step."""
        self._progress.advance(self._task)

    def epoch(self, number: int, result: EpochResult, metrics: Metrics) -> None:
        """Prints what an epoch did and how well the model does on the validation items."""
        self.line(
            f"epoch {number:3d}  loss {result.loss:.4f}  valid {_metrics(metrics)}  "
            f"{result.samples / result.seconds:.0f} samples/s  "
            f"{result.tokens / result.seconds:.0f} tokens/s"
        )

    def comparison(self, model: Metrics, popularity: Metrics) -> None:
        """Prints the test metrics of the model beside the baseline's."""
        table = Table(
            title="Test, leave one out", caption="rank among all items that the user has not met"
        )
        for heading in ("", "HR@10", "NDCG@10"):
            table.add_column(heading, justify="right" if heading else "left")
        for name, metrics in (("model", model), ("popularity", popularity)):
            table.add_row(name, f"{metrics.hit_rate:.4f}", f"{metrics.ndcg:.4f}")
        self._console.print(table)

    def blocked(self, ops: Sequence[OpStats]) -> None:
        """Prints rank 0's time blocked in communication, as counted by freescale's backend."""
        if not ops:
            self.line("time blocked in communication: only freescale's backend counts it")
            return
        table = Table(
            title="Blocked in communication, training and validation",
            caption="rank 0: time inside wait(), all groups",
        )
        table.add_column("priority")
        table.add_column("op")
        for heading in ("calls", "MB sent", "blocked s", "ms / call"):
            table.add_column(heading, justify="right")
        for op in sorted(ops, key=lambda op: -op.blocked_seconds):
            table.add_row(
                op.priority,
                op.op,
                str(op.calls),
                f"{op.bytes_sent / 1e6:.1f}",
                f"{op.blocked_seconds:.3f}",
                f"{1e3 * op.blocked_seconds / max(1, op.calls):.3f}",
            )
        self._console.print(table)

    def imbalance(self, loads: EpochBalance, *, balanced: bool) -> None:
        """Prints how unequal the ranks' shares of the last epoch were."""
        dealt, even = ("", " (as here)") if balanced else (" (as here)", "")
        self.line(
            f"load of the heaviest rank over the mean: {loads.before:.3f} with users dealt out in "
            f"turn{dealt}, {loads.after:.3f} balanced{even}, {loads.floor:.3f} at least"
        )

    def result(self, **values: str | int | float) -> None:
        """Prints the one line that scripts read."""
        words = (
            f"{key}={value:.6g}" if isinstance(value, float) else f"{key}={value}"
            for key, value in values.items()
        )
        self.line(f"RESULT {' '.join(words)}")


def _metrics(metrics: Metrics) -> str:
    return f"HR@10 {metrics.hit_rate:.4f}  NDCG@10 {metrics.ndcg:.4f}"
