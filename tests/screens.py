"""Pictures of the project's pages at 390 and 1440 pixels, dark and light, in docs/screens (`make screens`).

    python -m tests.screens [--demo output/demo] [--out docs/screens]

It reads a finished demo, opens its report, the dashboard of its last phase and a recording of the gallery in headless
Chromium, and fails if axe-core finds anything on a page.
"""

from __future__ import annotations

import argparse
import base64
import io
import sys
import tempfile
from pathlib import Path

from PIL import Image

from lavis.common.errors import MissingFileError
from lavis.common.files import make_folder, write_bytes
from lavis.common.paths import REPO_ROOT
from lavis.common.program import run_program
from tests.browser import Page, axe_script, running_browser, violations
from xrl_alignment.show.dashboard.pages import Dashboard
from xrl_alignment.show.report.page import write_report
from xrl_alignment.show.report.run_data import find_runs, read_summary
from xrl_alignment.wire.http_server import PageServer

SIZES = {390: 844, 1440: 900}  # width and height of a phone and of a desktop
COLOURS = 96  # of a picture: pages have few, and the pictures stay small
LOADED = "document.readyState === 'complete' && [...document.images].every((image) => image.complete)"
READY = {  # when a page shows what it has to show
    "report": "document.querySelectorAll('.charts img').length > 3",
    "dashboard": "document.querySelector('#figures svg') && document.querySelector('#grid button')"
    " && document.getElementById('state').innerText === 'ended'",
    "recording": "document.getElementById('replay-frame').naturalWidth > 0",
}


def picture(page: Page) -> bytes:
    """What the page shows now, as a PNG of few colours."""
    shot = page.call("Page.captureScreenshot", format="png")
    image = Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
    png = io.BytesIO()
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(png, "PNG", optimize=True)
    return png.getvalue()


def main() -> None:
    """Take the pictures, print their sizes and what axe-core finds; exit code 1 if it finds something."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--demo", type=Path, default=REPO_ROOT / "output" / "demo", help="folder of a finished demo")
    parser.add_argument("--out", type=Path, default=REPO_ROOT / "docs" / "screens", help="folder of the pictures")
    arguments = parser.parse_args()
    if not (arguments.demo / "summary.json").exists():
        raise MissingFileError(f"no finished demo in {arguments.demo}: `make demo` first, or --demo FOLDER")
    recording = next(iter(sorted((REPO_ROOT / "docs" / "gallery").glob("expert*.html"))), None)
    if recording is None:
        raise MissingFileError("no recording in docs/gallery: `make gallery` first")
    run = find_runs(arguments.demo)["dpo"]
    make_folder(arguments.out)
    found: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        axe = axe_script(Path(folder))
        summary = read_summary(arguments.demo / "summary.json")
        report = write_report(arguments.demo, summary, out=Path(folder) / "report.html")
        server = PageServer("127.0.0.1", 0, "").start()
        try:
            server.mount(Dashboard(run))
            addresses = {"report": report.as_uri(), "dashboard": f"http://127.0.0.1:{server.port}/"}
            addresses["recording"] = recording.as_uri()
            with running_browser(Path(folder) / "profile") as browser:
                for name, address in addresses.items():
                    for width, height in SIZES.items():
                        for scheme in ("light", "dark"):
                            with browser.page(width=width, height=height, dark=scheme == "dark") as page:
                                page.open(address)
                                page.wait(f"{LOADED} && {READY[name]}")
                                path = arguments.out / f"{name}-{width}-{scheme}.png"
                                content = picture(page)
                                write_bytes(path, content)
                                tall = page.evaluate("document.documentElement.scrollHeight")
                                print(f"{path}: {len(content) / 1e3:.0f} kB; the page is {tall} px high", flush=True)
                                found += [f"{path.name}: {violation}" for violation in violations(page, axe)]
        finally:
            server.stop()
    print("\n".join(found) or "axe-core finds nothing")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    run_program(main)
