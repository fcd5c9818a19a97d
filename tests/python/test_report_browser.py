"""The page in a real browser: headless Chromium, without a network."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from freescale_pg.cli.main import main
from freescale_pg.report.palette import PALETTE
from report_runs import write_run

# What a person may want to look at after the tests; not in the repository.
ARTIFACTS = Path(__file__).resolve().parents[2] / "build" / "artifacts" / "report"
NAMES = ("chromium", "chromium-browser", "google-chrome")
LIMIT = 100.0
WIDTH, HEIGHT = 1100, 4600
LIGHT, DARK = "1", "0"


@pytest.fixture(scope="module")
def browser() -> str:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"there is no browser: none of {', '.join(NAMES)}")
    return found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_run(tmp_path_factory.mktemp("run"))
    assert main(["report", str(directory)]) == 0
    return directory / "report.html"


@pytest.fixture
def folder() -> Iterator[Path]:
    """For all that the browser writes. Not pytest's: sockets in it need a short path."""
    with tempfile.TemporaryDirectory(prefix="page-", ignore_cleanup_errors=True) as path:
        yield Path(path)


def look(browser: str, page: Path, folder: Path, *options: str) -> str:
    """Opens a page, and returns what the browser prints."""
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--hide-scrollbars",
        f"--window-size={WIDTH},{HEIGHT}",
        f"--user-data-dir={folder / 'profile'}",
        *options,
        page.as_uri(),
    ]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    try:
        output, errors = process.communicate(timeout=LIMIT)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # Its own session: all of the browser.
            process.communicate()
    assert process.returncode == 0, errors
    return output


def test_text(browser: str, page: Path, folder: Path) -> None:
    shown = look(browser, page, folder, "--dump-dom")
    for text in (
        "27.5 % of the ranks' time is bubble",
        "Steps 0 to 4, the first that are traced",
        "rank 0: blocked by stragglers, 3.00 ms",
        "1.250 times as balanced",
        "both &lt;share&gt;",  # a name with angles is text to the browser, too
        "Half of the calls were over within 1.00 ms (URGENT)",
        "Simulated bubble by number of ranks and mode",
    ):
        assert text in shown, text
    assert shown.count("<svg ") == 7 and shown.count("<section ") == 7
    assert "Not simulated" not in shown


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_screenshot(browser: str, page: Path, folder: Path, scheme: str) -> None:
    image = pytest.importorskip("PIL.Image", reason="matplotlib brings Pillow")
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    path = ARTIFACTS / f"{'light' if scheme == LIGHT else 'dark'}.png"
    path.unlink(missing_ok=True)
    look(
        browser,
        page,
        folder,
        f"--screenshot={path}",
        f"--blink-settings=preferredColorScheme={scheme}",
    )
    with image.open(path) as picture:
        assert (picture.format, picture.size) == ("PNG", (WIDTH, HEIGHT))
        counts = picture.convert("RGB").getcolors(WIDTH * HEIGHT)
    pixels = {f"#{r:02x}{g:02x}{b:02x}": count for count, (r, g, b) in counts}
    tone = "light" if scheme == LIGHT else "dark"
    colours = {name: getattr(PALETTE[name], tone) for name in PALETTE}
    assert max(pixels, key=lambda colour: pixels[colour]) == colours["surface"]
    # Areas of the plots, and not a line of a key alone.
    for name in ("compute", "stragglers", "communication", "loader", "accent", "baseline"):
        assert pixels.get(colours[name], 0) > 1000, name
    assert len(pixels) > 50  # letters have edges of many shades
