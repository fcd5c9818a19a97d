"""Which step of which epoch comes next."""


class Progress:
    """Where a sampler stands.

    A pass is one iteration over an epoch, or over what is left of it. A pass that was given up does
    not count: the next one begins at ``start`` again, which only a loaded state moves.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._named = False  # by set_epoch since the last pass began
        self.epoch = 0
        self.start = 0  # step that the next pass begins with
        self.done = 0  # steps of the epoch that the present or last pass has handed out

    def set_epoch(self, epoch: int) -> None:
        """Names the epoch of the next pass; the present one keeps its place."""
        if epoch != self.epoch:
            self._go_to(epoch, 0)
        self._named = True

    def load(self, epoch: int, step: int) -> None:
        """Goes to a saved place.

        An epoch that is over does not take back another one that was named for the next pass:
        StatefulDataLoader loads the state as late as when it starts to iterate, after a training
        loop has called ``set_epoch``.
        """
        if step == self._steps and self._named and epoch != self.epoch:
            self._go_to(self.epoch, 0)
        else:
            self._go_to(epoch, step)

    def begin(self) -> int:
        """Starts a pass; returns its first step."""
        self.done, self.start, self._named = self.start, 0, False
        return self.done

    def end_of_epoch(self) -> tuple[int, int] | None:
        """If a loaded state is the end of an epoch, makes that a pass without steps.

        Returns:
            Epoch and first step of that pass; None if there are steps left.
        """
        if self.start != self._steps:
            return None
        return self.epoch, self.begin()

    def hand_out(self, epoch: int, step: int) -> None:
        """Notes a step, unless it is one of an earlier epoch that somebody still iterates over."""
        if epoch == self.epoch:
            self.done = step + 1

    def _go_to(self, epoch: int, step: int) -> None:
        self.epoch, self.start, self.done = epoch, step, step
