"""Breaks each rule of rules.txt in a copy of the sources, and expects its test to notice.

Usage:
    python tests/mutation/check_mutations.py [--only TEXT] [--jobs N] [--limit SECONDS]
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RULES = Path(__file__).with_name("rules.txt")
SOURCES = ("CMakeLists.txt", "cmake", "cpp", "tests/cpp", "tests/fakes", "tests/fuzz", "tests/gpu")


@dataclass
class Rule:
    """What must hold, an edit that breaks it, and the test that then fails."""

    name: str
    file: str = ""
    edits: list[tuple[str, str]] = field(default_factory=list)
    target: str = ""  # the executable of the test
    filters: list[str] = field(default_factory=list)
    registered: str = ""  # the name by which ctest runs it, with the environment that it needs
    limit: float = 0  # seconds that its test has with the rule broken

    def broken(self, text: str) -> str | None:
        """The text with the rule broken; None if an edit does not apply exactly once."""
        for old, new in self.edits:
            if text.count(old) != 1:
                return None
            text = text.replace(old, new)
        return text


def read_rules(path: Path) -> list[Rule]:
    """Reads the paragraphs of rules.txt; their form is described in README.md."""
    rules: list[Rule] = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        key, _, value = line.partition(":")
        value = value.removeprefix(" ").replace("\\n", "\n")
        if key == "rule":
            rules.append(Rule(value))
        elif key == "file":
            rules[-1].file = value
        elif key == "replace":
            rules[-1].edits.append((value, ""))
        elif key == "with":
            rules[-1].edits[-1] = (rules[-1].edits[-1][0], value)
        elif key == "test":
            rules[-1].target, *rules[-1].filters = value.split()
        elif key == "ctest":
            rules[-1].registered = value
            rules[-1].target = value.replace("_over_network", "")
        else:
            raise ValueError(f"{path}:{number}: no field is called '{key}'")
    return rules


def copy_sources(to: Path) -> None:
    """Brings the copy up to date; files that are the same keep their times."""
    wanted = set()
    for name in SOURCES:
        source = ROOT / name
        for file in [source] if source.is_file() else sorted(source.rglob("*")):
            if file.is_dir():
                continue
            target = to / file.relative_to(ROOT)
            wanted.add(target)
            if target.exists() and target.read_bytes() == file.read_bytes():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
    for file in list(to.rglob("*")):
        if file.is_file() and file not in wanted:
            file.unlink()


def run(command: Sequence[str], limit: float | None = None, quiet: bool = True) -> int | None:
    """The exit status, or None if the limit came first. What it has started ends with it."""
    output = subprocess.DEVNULL if quiet else None
    with subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True) as process:
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def broken_rule(file: Path, text: str) -> Iterator[None]:
    """Puts the text into the file for as long as the context is open."""
    original = file.read_text()
    file.write_text(text)
    try:
        yield
    finally:
        file.write_text(original)  # newer than its build, which is made again therefore


class Checker:
    """A tree of its own, in which one rule after the other is broken."""

    def __init__(self, tree: Path, jobs: int, limit: float) -> None:
        self.source = tree / "source"
        self.build = tree / "tree"
        self.jobs = jobs
        self.limit = limit

    def prepare(self, targets: Sequence[str]) -> None:
        """Builds the unbroken tests."""
        copy_sources(self.source)
        # Without optimisation: most of the time goes into building.
        configure = ["cmake", "-S", str(self.source), "-B", str(self.build), "-G", "Ninja"]
        configure += ["-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O0"]
        # In whose environment the headers of UCX are.
        configure += [f"-DPython_EXECUTABLE={sys.executable}"]
        if run(configure, quiet=False) != 0 or not self.compiles(targets, quiet=False):
            sys.exit("the tests do not build as they are")

    def compiles(self, targets: Sequence[str], quiet: bool = True) -> bool:
        command = ["cmake", "--build", str(self.build), "-j", str(self.jobs), "--target"]
        return run([*command, *targets], quiet=quiet) == 0

    def run_test(self, rule: Rule, limit: float) -> int | None:
        directory = self.build / "tests" / "cpp"
        if rule.registered:
            command = ["ctest", "--test-dir", str(directory), "--no-tests=error"]
            return run([*command, "-R", f"^{rule.registered}$"], limit)
        return run([str(directory / rule.target), *rule.filters], limit)

    def try_unbroken(self, rules: Sequence[Rule]) -> None:
        """Runs each test before anything is broken: later the build is that of a mutant."""
        seconds: dict[tuple[str, ...], float] = {}
        for rule in rules:
            test = (rule.registered or rule.target, *rule.filters)
            if test not in seconds:
                begin = time.monotonic()
                if self.run_test(rule, self.limit) != 0:
                    sys.exit(f"nothing is broken, but this fails: {' '.join(test)}")
                seconds[test] = time.monotonic() - begin
            # Nobody waits minutes for a mutant that hangs.
            rule.limit = min(self.limit, 20 + 10 * seconds[test])

    def check(self, rule: Rule) -> str:
        file = self.source / rule.file
        text = rule.broken(file.read_text())
        if text is None:
            return "does not apply"
        # What was broken before is built again by the next rule, or by the next prepare().
        with broken_rule(file, text):
            if not self.compiles([rule.target]):
                return "does not build"
            status = self.run_test(rule, rule.limit)
        return {0: "SURVIVES", None: "hangs"}.get(status, "killed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="rules whose name, file or test has this text")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=float, default=120, help="seconds for a test")
    parser.add_argument("--tree", type=Path, default=ROOT / "build" / "mutation")
    arguments = parser.parse_args()

    rules = [
        rule
        for rule in read_rules(RULES)
        if arguments.only in f"{rule.name} {rule.file} {rule.target} {rule.registered}"
    ]
    if not rules:
        sys.exit(f"no rule has '{arguments.only}' in its name, file or test")
    checker = Checker(arguments.tree, arguments.jobs, arguments.limit)
    checker.prepare(sorted({rule.target for rule in rules}))
    checker.try_unbroken(rules)
    wrong = 0
    for rule in rules:
        begin = time.monotonic()
        outcome = checker.check(rule)
        wrong += outcome not in ("killed", "hangs")
        print(f"{outcome:<14} {time.monotonic() - begin:6.1f} s  {rule.name}", flush=True)
    print(f"{len(rules) - wrong} of {len(rules)} mutants killed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
