"""Prints the facts CMake needs about the installed torch: directory;version;C++11 ABI flag.

torch is located, not imported: an import takes seconds, and runs the hooks of every installed
plug-in, this one's half-built module included.
"""

import importlib.util
import re
import sys
from pathlib import Path


def main() -> int:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return 1
    directory = Path(spec.origin).parent
    version = re.search(r"^__version__ = '([^']+)'", (directory / "version.py").read_text(), re.M)
    if version is None:
        return 1
    config = directory / "share" / "cmake" / "Torch" / "TorchConfig.cmake"
    flag = (
        re.search(r"_GLIBCXX_USE_CXX11_ABI=([01])", config.read_text()) if config.exists() else None
    )
    # Every torch since 2.7 is built with the C++11 ABI; a torch that says otherwise is believed.
    print(f"{directory};{version.group(1)};{flag.group(1) if flag else 1}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
