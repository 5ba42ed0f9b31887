"""Photograph finished reports for the docs: ``report_pictures.py FOLDER=NAME …`` writes docs/images/report-NAME-WIDTH.png.

Needs Chromium and the dev extra. A page longer than what the docs show is cut.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).parent.parent / "docs" / "images"
SHOWN = {1280: 1040, 390: 1500}  # pixels of height by width


def main(pairs: list[str]) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--headless", "--no-sandbox"])
        for pair in pairs:
            folder, _, name = pair.partition("=")
            for width, shown in SHOWN.items():
                tab = browser.new_page(viewport={"width": width, "height": 900})
                tab.goto((Path(folder) / "report.html").absolute().as_uri())
                height = min(shown, tab.evaluate("document.documentElement.scrollHeight"))
                path = IMAGES / f"report-{name}-{width}.png"
                tab.screenshot(path=path, full_page=True, clip={"x": 0, "y": 0, "width": width, "height": height})
                print(path, path.stat().st_size)
                tab.close()
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
