"""Registration: by `import torch` alone, fast, never failing, and unseen by other backends."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

PACKAGE = "freescale_pg"


def run_python(source: str, *, options: tuple[str, ...] = (), path: Path | None = None) -> str:
    """Runs a fresh interpreter and returns what it printed, both streams."""
    environment = dict(os.environ)
    if path is not None:
        others = environment.get("PYTHONPATH", "")
        environment["PYTHONPATH"] = os.pathsep.join([str(path), others])
    done = subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(source)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


ONE_RANK = """
    import torch, torch.distributed as dist
    def make(backend):
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
"""


def test_import_torch_is_enough_and_loads_nothing_heavy() -> None:
    """Processes that never use the backend pay for two small modules."""
    run_python(
        ONE_RANK
        + """
    import sys
    loaded = {name for name in sys.modules if name.startswith("freescale_pg")}
    assert loaded <= {"freescale_pg", "freescale_pg._autoload"}, loaded
    assert dist.is_backend_available("freescale")
    make("freescale")
    dist.all_reduce(torch.ones(3))
    dist.barrier()
    assert dist.get_backend() == "freescale"
    """
    )


def test_import_torch_is_at_most_five_milliseconds_slower() -> None:
    """CPU time of the hook itself, in an interpreter where it has not run; the lesser of two."""
    source = """
    import time, torch
    begin = time.process_time()
    from freescale_pg._autoload import register
    register()
    print(time.process_time() - begin)
    import torch.distributed as dist
    assert dist.is_backend_available("freescale")
    """
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    try:
        times = [float(run_python(source)) for _ in range(2)]
    finally:
        del os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"]
    assert min(times) < 0.005, times


def test_registration_twice_changes_nothing() -> None:
    run_python(
        """
    import torch
    from torch.distributed import Backend
    from freescale_pg import _autoload
    Backend("freescale")
    _autoload.register_backend()
    plugin = Backend._plugins["FREESCALE"]
    _autoload.register()
    _autoload.register_backend()
    assert Backend._plugins["FREESCALE"] is plugin
    assert Backend.backend_list.count("freescale") == 1
    """
    )


def test_failing_registration_does_not_fail_torch() -> None:
    """Whatever goes wrong in the hook, it reports and returns, also where warnings are errors."""
    output = run_python(
        """
    import torch
    from torch.distributed import Backend
    from freescale_pg import _autoload
    Backend._plugins.pop("FREESCALE", None)
    def fail(*args, **kwargs): raise RuntimeError("what went wrong")
    Backend.register_backend = fail
    if hasattr(Backend, "_ensure_backend_registered"):
        del Backend._ensure_backend_registered
    _autoload.register()
    print("still here")
    """,
        options=("-W", "error"),
    )
    assert "what went wrong" in output
    assert "still here" in output


def test_broken_extension_is_found_at_the_first_group_only(tmp_path: Path) -> None:
    package = tmp_path / PACKAGE
    package.mkdir()
    import freescale_pg

    source = Path(str(freescale_pg.__file__)).parent
    for module in source.glob("*.py"):
        (package / module.name).write_text(module.read_text())
    (package / "_C.py").write_text('raise ImportError("undefined symbol: _ZN3c10")')
    output = run_python(
        ONE_RANK
        + f"""
    import freescale_pg
    assert freescale_pg.__file__.startswith("{tmp_path}"), freescale_pg.__file__
    try:
        make("freescale")
    except ImportError as error:
        print(error)
    make("gloo")
    """,
        path=tmp_path,
    )
    assert "does not load into torch" in output
    assert "undefined symbol: _ZN3c10" in output


def test_groups_of_others_keep_working() -> None:
    run_python(
        ONE_RANK
        + """
    def check(backend, name):
        make(backend)
        group = dist.group.WORLD
        dist.all_reduce(torch.ones(3))
        dist.barrier()
        assert group._get_backend_name() == name, backend
        assert not group._has_hooks(), backend
        dist.destroy_process_group()
    check("gloo", "gloo")
    check("cpu:gloo", "gloo")
    import torch.testing._internal.distributed.fake_pg  # Registers a plug-in.
    check("fake", "custom")
    """
    )


def test_other_plugin_keeps_working() -> None:
    """A second plug-in, registered after ours, is served as torch would without us."""
    run_python(
        ONE_RANK
        + """
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torch._C._distributed_c10d import FakeProcessGroup
    def create(request, options):
        return FakeProcessGroup._create_internal(request.group_rank, request.group_size)
    dist.Backend.register_backend("other", create, extended_api=True, devices=["cpu"])
    assert "OTHER" in dist.Backend._plugins.keys()
    make("other")
    dist.all_reduce(torch.ones(3))
    assert dist.group.WORLD._get_backend_name() == "custom"
    """
    )


def test_groups_are_not_called_custom() -> None:
    run_python(
        ONE_RANK
        + """
    for backend in ("freescale", "cpu:freescale"):
        make(backend)
        group = dist.group.WORLD
        assert group._get_backend_name() != "custom", backend
        dist.all_reduce(torch.ones(3))
        dist.barrier()
        assert not group._has_hooks(), backend
        dist.destroy_process_group()
    """
    )


def test_package_names() -> None:
    """Every public name exists, is documented, and is loaded when it is asked for."""
    run_python(
        """
    import sys
    import freescale_pg as fs
    assert "torch" not in sys.modules, "importing the package alone is light"
    assert fs.Priority.URGENT == -2
    assert dir(fs) == sorted(fs.__all__)
    assert "torch" not in sys.modules
    for name in fs.__all__:
        assert getattr(fs, name).__doc__, name
    try:
        fs.nothing
    except AttributeError as error:
        assert "nothing" in str(error)
    else:
        raise SystemExit("a name that does not exist")
    """
    )
