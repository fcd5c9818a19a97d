"""``freescale simulate``: what it prints and writes, and what it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from freescale_pg.cli.main import main

SMALL = (
    "--ranks",
    "8",
    "--samples-per-rank",
    "4",
    "--steps",
    "3",
    "--warm-up-steps",
    "2",
    "--dense-megabytes",
    "1",
)


def simulate(*arguments: str) -> int:
    return main(["simulate", *SMALL, *arguments])


def test_prints_a_line_for_each_mode(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate() == 0
    output = capsys.readouterr().out
    assert "8 ranks on 1 hosts, 4 samples on each" in output
    for mode in ("baseline", "+ balance", "+ prioritised overlap", "+ SM-free"):
        assert f"\n{mode}  " in output
    assert "bubbles gone %" in output


def test_writes_what_it_found(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    assert simulate("--json", str(path), "--lengths", "lognormal") == 0
    told = json.loads(path.read_text())
    assert told["parameters"]["ranks"] == 8
    assert told["parameters"]["lengths"] == "lognormal"
    assert [mode["mode"] for mode in told["modes"]] == [
        "baseline", "balance", "overlap", "sm_free",
    ]  # fmt: skip
    assert told["modes"][0]["bubbles_gone"] == 0


def test_takes_lengths_and_costs_from_files(tmp_path: Path) -> None:
    lengths, steps, out = (tmp_path / name for name in ("lengths.npy", "steps.json", "out.json"))
    np.save(lengths, np.full(64, 100))
    measured = [[10], [20, 20], [40], [80, 10]]
    seconds = [0.001 * sum(step) + 1e-6 * sum(n * n for n in step) for step in measured]
    steps.write_text(json.dumps({"lengths": measured, "seconds": seconds}))
    options = ("--lengths-file", str(lengths), "--measured-steps", str(steps), "--json", str(out))
    assert simulate(*options, "--link-by-link") == 0
    spent = json.loads(out.read_text())["modes"][0]["rank_seconds"]
    # 3 steps of 8 ranks with 4 samples of 100 tokens.
    assert spent["compute"] == pytest.approx(3 * 8 * 4 * (0.1 + 0.01), rel=1e-3)
    assert spent["straggler"] == pytest.approx(0.0, abs=1e-3)


def test_draws_from_what_is_fitted_to_a_short_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("10\n20\n40\n")
    assert simulate("--lengths-file", str(path)) == 1
    assert "3 lengths are too few for a global batch of 8 ranks × 4" in capsys.readouterr().err
    assert simulate("--lengths-file", str(path), "--fit-lognormal") == 0
    assert "20 tokens in the median" in capsys.readouterr().out


def test_says_what_the_coarse_model_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    slow = ("--nvlink-gigabytes-per-second", "0.05", "--dense-megabytes", "50")
    assert simulate(*slow) == 0
    assert "the scheduler would have let them climb" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--ranks", "12"), "--ranks 12 do not fill hosts of --ranks-per-host 8"),
        (("--ranks", "0"), "--ranks must be positive, got 0"),
        (("--steps", "-1"), "--steps must be positive, got -1"),
        (("--teraflops", "0"), "--teraflops must be positive, got 0.0"),
        (("--warm-up-steps", "-1"), "--warm-up-steps must not be negative, got -1"),
        (("--slowdown-percent", "-5"), "--slowdown-percent must not be negative, got -5.0"),
        (("--shared-percent", "130"), "--shared-percent must be between 0 and 100, got 130.0"),
        (("--dense-megabytes", "-1"), "--dense-megabytes must not be negative, got -1.0"),
        (("--fit-lognormal",), "--fit-lognormal fits the lengths of --lengths-file"),
        (
            ("--link-by-link", "--ranks", "64"),
            "--link-by-link follows up to 32 ranks, got --ranks 64",
        ),
        (("--zipf-exponent", "1"), "exponent of a Zipf law must be above 1, got 1.0"),
        (("--lengths-file", "/nowhere.npy"), "/nowhere.npy"),
    ],
)
def test_refuses_what_is_impossible(
    options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(*options) == 1
    error = capsys.readouterr().err
    assert error.startswith("freescale: ")
    assert message in error


def test_bad_option_is_refused_without_loading_torch() -> None:
    code = (
        "import sys; from freescale_pg.cli.main import main\n"
        "status = main(['simulate', '--ranks', '12'])\n"
        "sys.exit(status if 'torch' not in sys.modules else 3)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert done.returncode == 1
