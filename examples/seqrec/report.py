"""What a run shows: progress while it trains, tables when it is done. Only rank 0 prints."""

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from freescale_pg.balance import EpochBalance
from seqrec.evaluate import Metrics
from seqrec.exchange import BlockedTime
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

    def blocked(self, rows: Sequence[BlockedTime], caption: str) -> None:
        """Prints the time blocked in communication, most blocked first."""
        table = Table(title="Blocked in communication, training and validation", caption=caption)
        table.add_column("priority")
        table.add_column("op")
        for heading in ("calls", "MB sent", "blocked s", "ms / call"):
            table.add_column(heading, justify="right")
        for row in sorted(rows, key=lambda row: -row.seconds):
            table.add_row(
                row.priority,
                row.op,
                str(row.calls),
                f"{row.bytes_sent / 1e6:.1f}",
                f"{row.seconds:.3f}",
                f"{1e3 * row.seconds / max(1, row.calls):.3f}",
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
