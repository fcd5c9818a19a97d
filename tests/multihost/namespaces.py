"""Linux namespaces that last as long as the process that asked for them, and not longer.

Nothing has a name: a holder process keeps the namespaces, and ends as soon as its standard input
does, which is when its maker ends, in whatever way. With the holder go all processes in its PID
namespace, and with them interfaces and mounts.
"""

import ctypes
import functools
import os
import select
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

# Seconds. Every step takes milliseconds on an idle machine.
STEP_LIMIT = 30.0
PROGRAMS = ("unshare", "nsenter", "mount", "sh", "env", "ip", "tc")
# Everything that the tests need: all kinds of namespaces, a veth pair, a bridge, tbf, a filter.
PROBE = """
ip link add bridge type bridge
ip link add here type veth peer name there
ip link set here master bridge
tc qdisc add dev here root tbf rate 1mbit burst 10k limit 10k
tc qdisc add dev there clsact
tc filter add dev there ingress protocol all prio 1 bpf da bytecode '1,6 0 0 2'
"""
# In the order of entering: the last one takes away the /proc that leads to the others.
KINDS = ("net", "uts", "ipc", "pid", "mnt")


@functools.cache
def missing() -> str | None:
    """Says why this machine cannot emulate hosts; None if it can."""
    if os.geteuid() != 0:
        return "emulated hosts need root"
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    if absent:
        return f"emulated hosts need {', '.join(absent)} (util-linux, iproute2)"
    try:
        with Namespaces(KINDS, PROBE):
            return None
    except (OSError, RuntimeError) as error:
        return f"this machine has no emulated hosts: {error}"


@dataclass(frozen=True)
class Door:
    """The way into namespaces; may be sent to other processes.

    Attributes:
        pid: Of the holder.
        kinds: Of namespaces, in the order of :data:`KINDS`.
    """

    pid: int
    kinds: tuple[str, ...]

    def command(self, command: Sequence[str]) -> list[str]:
        """The command that runs ``command`` inside, in the current directory."""
        # nsenter's own option for the directory would lead to the one outside.
        inside = ["env", f"--chdir={Path.cwd()}", *command]
        names = {"mnt": "mount"}
        ways = [f"--{names.get(kind, kind)}={self._path(kind)}" for kind in self.kinds]
        return ["nsenter", *ways, *inside]

    def enter(self) -> None:
        """Moves the calling thread inside; as for processes, only its children get there."""
        libc = ctypes.CDLL(None, use_errno=True)
        directory = Path.cwd()
        descriptors = [os.open(self._path(kind), os.O_RDONLY) for kind in self.kinds]
        # Threads share their directories, and with a shared one no mount namespace lets in.
        results = [libc.unshare(0x200)]  # CLONE_FS
        for descriptor in descriptors:
            results.append(libc.setns(descriptor, 0))
            os.close(descriptor)
        if any(results):
            raise OSError(ctypes.get_errno(), f"entering {self.kinds} of process {self.pid}")
        os.chdir(directory)

    def _path(self, kind: str) -> str:
        # The holder itself, which had to fork, stays outside of the PID namespace that it made.
        return f"/proc/{self.pid}/ns/{'pid_for_children' if kind == 'pid' else kind}"


class Namespaces:
    """New namespaces and the process that holds them.

    Args:
        kinds: Some of :data:`KINDS`.
        setup: Shell commands to run inside before anything else; all must succeed.
        arguments: ``$1`` and so on of ``setup``.
        mounts_of: Namespaces whose mounts the new ones begin with; None: those of the machine.

    Raises:
        RuntimeError: A command failed. The message has its output.
    """

    def __init__(
        self,
        kinds: Sequence[str],
        setup: str = "",
        arguments: Sequence[str] = (),
        mounts_of: "Namespaces | None" = None,
    ) -> None:
        kinds = tuple(kind for kind in KINDS if kind in kinds)
        options = {
            "mnt": ["--mount"],
            "pid": ["--pid", "--fork", "--kill-child", "--mount-proc"],
        }
        flags = [flag for kind in kinds for flag in options.get(kind, [f"--{kind}"])]
        # Ignored, SIGCHLD has the kernel reap orphans, which come to the first process.
        script = f"set -e\n{setup}\necho ready\ntrap '' CHLD\nexec cat"
        command = ["unshare", *flags, "sh", "-c", script, "sh", *arguments]
        if mounts_of is not None:
            command = [*Door(mounts_of.door.pid, ("mnt",)).command(command)]
        self._holder = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # Ctrl-C is for the maker, which then closes in order.
            start_new_session=True,
        )
        self.door: Door = Door(self._holder.pid, kinds)
        try:
            self._await_ready()
        except BaseException:
            self.close()
            raise

    def _await_ready(self) -> None:
        assert self._holder.stdout is not None
        output, deadline = b"", time.monotonic() + STEP_LIMIT
        while not output.endswith(b"ready\n"):
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._holder.stdout], [], [], left)[0]:
                raise RuntimeError(f"no namespaces after {STEP_LIMIT:.0f} s: {output.decode()}")
            piece = os.read(self._holder.stdout.fileno(), 4096)
            if not piece:
                raise RuntimeError(f"namespaces: {output.decode().strip()}")
            output += piece

    def run(
        self, command: Sequence[str], given: str | None = None, limit: float = STEP_LIMIT
    ) -> str:
        """Runs a command inside; returns what it wrote.

        Raises:
            RuntimeError: It failed, or still ran after ``limit`` seconds.
        """
        try:
            done = subprocess.run(
                self.door.command(command),
                input=given,
                stdin=subprocess.DEVNULL if given is None else None,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=limit,
            )
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"{shlex.join(command)}: still ran after {limit:.0f} s") from error
        if done.returncode != 0:
            raise RuntimeError(f"{shlex.join(command)}: {done.stdout}{given or ''}")
        return done.stdout

    def popen(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        output: IO[str] | int | None = subprocess.PIPE,
    ) -> "subprocess.Popen[str]":
        """Starts a command inside, which writes to ``output``; None: where this process does.

        The process returned is not the command but waits for it: see :meth:`kill_all`.
        """
        return subprocess.Popen(
            self.door.command(command),
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            text=True,
        )

    def kill_all(self) -> None:
        """Kills every process inside but the holder."""
        # -1 is all but the first process and the shell, which must not be outside by mistake.
        inside = str(Path(f"/proc/{self.door.pid}/ns/pid_for_children").readlink())
        assert inside != str(Path("/proc/self/ns/pid").readlink())
        script = '[ "$(readlink /proc/self/ns/pid)" = "$1" ] || exit 1\nkill -s KILL -- -1 || true'
        self.run(["sh", "-c", script, "sh", inside])

    def close(self) -> None:
        """Ends the holder, all processes inside, and what only they held."""
        self._holder.kill()
        self._holder.communicate(timeout=STEP_LIMIT)

    def __enter__(self) -> "Namespaces":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
