"""Builds the extension module ``freescale_pg._C`` by driving CMake; metadata is in pyproject.toml.

Environment:
    FREESCALE_BUILD_DIR: The CMake build tree. By default one below ``build/`` for each kind of
        install (editable or wheel), interpreter ABI and torch version.
    FREESCALE_CMAKE_ARGS: Further arguments of CMake's configure step, split like a shell line.
    CMAKE_BUILD_PARALLEL_LEVEL: Compilers run at once; by default the cores this process may use.
"""

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
PROCESSORS = ("x86_64", "amd64", "aarch64", "arm64")


def check_platform() -> None:
    """Raises SystemExit where the C++ engine cannot work."""
    if not sys.platform.startswith("linux"):
        sys.exit(f"freescale_pg needs Linux; this system is {sys.platform}.")
    if platform.machine().lower() not in PROCESSORS:
        sys.exit(f"freescale_pg supports x86-64 and aarch64; this is {platform.machine()}.")


def find_program(name: str) -> str | None:
    """Returns the path of a program, looking beside the running Python before ``PATH``.

    A virtual environment that is not activated holds the pinned CMake, but is not on ``PATH``.
    """
    search = os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)))
    return shutil.which(name, path=search)


def run_cmake(*arguments: str) -> None:
    cmake = find_program("cmake")
    if cmake is None:
        sys.exit("freescale_pg is built with CMake, and none was found: pip install cmake ninja")
    result = subprocess.run((cmake, *arguments), check=False)
    if result.returncode != 0:
        sys.exit(f"cmake {shlex.join(arguments)} failed; its own message is above.")


class CMakeBuild(build_ext):
    """Hands the one extension to CMake and lets it place the module."""

    def run(self) -> None:
        # Not build_ext.run: that builds into a staging folder and copies, so that a later
        # `cmake --build` would not reach the module an editable install imports.
        check_platform()
        for extension in self.extensions:
            self.build_extension(extension)

    def build_extension(self, ext: Extension) -> None:
        build_dir = self._build_dir()
        module_dir = (ROOT / self.get_ext_fullpath(ext.name)).parent
        run_cmake(
            *("-S", str(ROOT), "-B", str(build_dir)),
            *self._generator(),
            "-DCMAKE_BUILD_TYPE=Release",
            "-DFREESCALE_BUILD_TORCH=ON",
            "-DFREESCALE_BUILD_TESTS=OFF",
            f"-DFREESCALE_MODULE_DIR={module_dir}",
            f"-DPython_EXECUTABLE={sys.executable}",
            *shlex.split(os.environ.get("FREESCALE_CMAKE_ARGS", "")),
        )
        cores = len(os.sched_getaffinity(0))
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(cores))
        run_cmake("--build", str(build_dir), "--parallel", jobs)

    def _build_dir(self) -> Path:
        if chosen := os.environ.get("FREESCALE_BUILD_DIR"):
            return ROOT / chosen
        kind = "editable" if self.inplace else "wheel"
        abi = sysconfig.get_config_var("SOABI")
        return ROOT / "build" / f"{kind}-{abi}-torch-{metadata.version('torch')}"

    @staticmethod
    def _generator() -> tuple[str, ...]:
        ninja = find_program("ninja")
        if ninja is None:
            return ("-G", "Unix Makefiles")
        return ("-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}")


setup(
    ext_modules=[Extension("freescale_pg._C", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
)
