"""The layer check on small made-up trees, good and bad."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECK = ROOT / "tools" / "check_layers.py"

GOOD_TREE = {
    "cpp/base/status.h": "#pragma once\n#include <string>\n",
    "cpp/base/status.cc": '#include "cpp/base/status.h"\n',
    "cpp/transport/transport.h": '#include "cpp/base/status.h"\n',
    "cpp/transport/shm/ring.h": '#include "cpp/transport/transport.h"\n',
    "cpp/collectives/plan.cc": '#include "cpp/transport/shm/ring.h"\n#include <vector>\n',
    "backend/work.h": '#include <ATen/ATen.h>\n#include "cpp/collectives/plan.h"\n',
    "backend/module.cc": '#include <pybind11/pybind11.h>\n#include "backend/work.h"\n',
    "python/freescale_pg/__init__.py": "from freescale_pg.options import Options\n",
    "python/freescale_pg/options.py": "from . import _C\nfrom .priority import Priority\n",
    "python/freescale_pg/priority.py": "import enum\nfrom torch import nn\n",
}


def run_check(root: Path, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return subprocess.run(
        [sys.executable, str(CHECK), str(root)], capture_output=True, text=True, timeout=30
    )


def test_downward_dependencies_pass(tmp_path: Path) -> None:
    result = run_check(tmp_path, GOOD_TREE)
    assert result.returncode == 0, result.stdout


def test_the_project_itself_passes() -> None:
    result = subprocess.run(
        [sys.executable, str(CHECK)], capture_output=True, text=True, timeout=30
    )
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        pytest.param(
            {"cpp/base/status.cc": '// first\n#include "cpp/scheduler/engine.h"\n'},
            "cpp/base/status.cc:2: includes cpp/scheduler/engine.h, upward",
            id="upward",
        ),
        pytest.param(
            {"cpp/transport/transport.h": '#include "cpp/transport/shm/ring.h"\n'},
            "upward from cpp/transport to cpp/transport/shm",
            id="upward-into-own-subfolder",
        ),
        pytest.param(
            {"cpp/collectives/plan.cc": '#include "backend/work.h"\n'},
            "upward from cpp/collectives to backend",
            id="upward-into-backend",
        ),
        pytest.param(
            {
                "cpp/base/a.h": '#include "cpp/base/b.h"\n',
                "cpp/base/b.h": '#  include "cpp/base/c.h"\n',
                "cpp/base/c.h": '#include "cpp/base/a.h"\n',
            },
            "include circle: cpp/base/a.h -> cpp/base/b.h -> cpp/base/c.h -> cpp/base/a.h",
            id="circle-inside-a-layer",
        ),
        pytest.param(
            {"cpp/base/status.h": "#include <c10/util/Exception.h>\n"},
            "cpp/ is built without torch",
            id="torch-in-cpp",
        ),
        pytest.param(
            {"cpp/device/copy.h": '#include "torch/csrc/utils/pybind.h"\n'},
            "cpp/ is built without torch",
            id="quoted-torch-in-cpp",
        ),
        pytest.param(
            {"cpp/device/copy.h": "#include <Python.h>\n"},
            "which only the bindings ('backend/module.cc', ",
            id="python-in-cpp",
        ),
        pytest.param(
            {"backend/work.h": "#include <torch/extension.h>\n"},
            "which only the bindings ('backend/module.cc', ",
            id="pybind11-by-another-name",
        ),
        pytest.param(
            {"cpp/base/status.cc": '#include "status.h"\n'},
            "not written from the root",
            id="relative-include",
        ),
        pytest.param(
            {"cpp/misc/things.h": "#include <string>\n"},
            "cpp/misc/things.h:1: lies in a folder that is no layer",
            id="unknown-layer",
        ),
        pytest.param(
            {"python/freescale_pg/priority.py": "from .options import Options\n"},
            "import circle: freescale_pg.options -> freescale_pg.priority -> freescale_pg.options",
            id="python-circle",
        ),
        pytest.param(
            {
                "python/freescale_pg/priority.py": (
                    "def late():\n    from freescale_pg.options import Options\n"
                )
            },
            "import circle",
            id="python-circle-inside-a-function",
        ),
        pytest.param(
            {"python/freescale_pg/priority.py": "from freescale_pg import Options\n"},
            "priority.py:1: imports freescale_pg.Options from the public package",
            id="python-imports-the-public-package",
        ),
        pytest.param(
            {
                "python/freescale_pg/bench/__init__.py": "",
                "python/freescale_pg/bench/cells.py": "",
                "python/freescale_pg/priority.py": "from freescale_pg.bench import cells\n",
            },
            "priority.py:1: imports freescale_pg.bench.cells, upward",
            id="python-imports-the-benchmarks",
        ),
        pytest.param(
            {
                "python/freescale_pg/cli/__init__.py": "",
                "python/freescale_pg/cli/main.py": "",
                "python/freescale_pg/bench/cells.py": "import freescale_pg.cli.main\n",
            },
            "bench/cells.py:1: imports freescale_pg.cli.main, upward",
            id="python-imports-the-command-line",
        ),
    ],
)
def test_fault_is_reported(tmp_path: Path, changes: dict[str, str], complaint: str) -> None:
    result = run_check(tmp_path, GOOD_TREE | changes)
    assert result.returncode == 1
    assert complaint in result.stdout
    assert result.stdout.count("\n") == 1, "one fault, one line"
