"""Fetches MovieLens-100k out of the wheel of ``recbole``, which carries it as an example.

    python -m seqrec.movielens FOLDER      # before a run on hosts that reach no package index

The data are under GroupLens's research terms: use them, cite them (Harper and Konstan, 2015,
doi:10.1145/2827872), do not redistribute them. They stay in the cache folder.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

_REQUIREMENT = "recbole==1.2.1"
_MEMBER = "dataset_example/ml-100k/ml-100k.inter"
_DOWNLOAD_SECONDS = 120


class DownloadError(RuntimeError):
    """The data set could not be fetched; the message says why."""


def cached_path(cache: Path) -> Path:
    """Returns where ``fetch`` leaves the file."""
    return cache / "ml-100k.inter"


def fetch(cache: Path) -> Path:
    """Makes sure that MovieLens-100k lies in the cache, and downloads it only if it does not.

    Args:
        cache: A folder; made if it is missing.

    Returns:
        The ``.inter`` file.

    Raises:
        DownloadError: No network, no pip, or a wheel without the file.
    """
    target = cached_path(cache)
    if target.exists():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        wheel = _download_wheel(Path(folder))
        partial = Path(folder) / "ml-100k.inter"
        partial.write_bytes(_member(wheel))
        # A rename, so that an interrupted run leaves either nothing or the whole file.
        partial.replace(target)
    return target


def _download_wheel(folder: Path) -> Path:
    # Binary only: a source distribution would run its setup code.
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--retries=1"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", *options]
    try:
        done = subprocess.run(
            [*command, f"--dest={folder}", _REQUIREMENT],
            capture_output=True,
            text=True,
            timeout=_DOWNLOAD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DownloadError(f"pip took more than {_DOWNLOAD_SECONDS} s") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise DownloadError(lines[-1] if lines else f"pip exited with {done.returncode}")
    return next(folder.glob("*.whl"))


def _member(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(_MEMBER):
                return archive.read(name)
    raise DownloadError(f"{wheel.name} has no {_MEMBER}")


if __name__ == "__main__":
    try:
        fetch(Path(sys.argv[1]))
    except DownloadError as error:
        print(f"cannot get MovieLens-100k: {error}", file=sys.stderr)
