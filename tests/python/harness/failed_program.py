"""What a program that failed has to say, with the useful part where a record of a run ends."""

import re

# From torchrun's line on the first rank that failed to its table of all that did: where torchrun
# itself was then.
TORCHRUN_TRACEBACK = re.compile(
    r"^E\d{4} .*\] failed \(exitcode.*\nTraceback \(most recent call last\):\n(?:.*\n)*?"
    r".*ChildFailedError.*\n",
    re.MULTILINE,
)
# Where a process was that a signal ended, as abort() does.
STACKS = {"PYTHONFAULTHANDLER": "1"}


def failure_of(output: str, errors: str) -> str:
    """Joins them: torchrun's part, of which its traceback is left out, comes before the ranks'.

    Args:
        output: Of the program and its children.
        errors: The same.
    """
    ranks, *torchrun = TORCHRUN_TRACEBACK.split(errors, maxsplit=1)
    parts = [output, *torchrun, ranks]
    return "\n" + "\n".join(part.strip("\n") for part in parts if part.strip())
