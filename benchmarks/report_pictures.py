"""Photograph finished reports for the docs: ``report_pictures.py FOLDER=NAME …`` writes docs/images/report-NAME-WIDTH.png.

``FOLDER=NAME#CHAPTER`` begins at a chapter, by its anchor, and writes the wide picture alone.

``report_pictures.py live`` watches a slow head on its live page and writes docs/images/live-under-way.png and live-done.png.
Needs Chromium and the dev extra. A page longer than what the docs show is cut.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).parent.parent / "docs" / "images"
SLOW = """
import time
import unsoftmax as us

head = us.open("demo:attention,width=48,seed=3")


class Slow:
    width = 48

    def __call__(self, X):
        time.sleep(0.15)
        return head(X)


target = Slow()
"""
SHOWN = {1280: 1040, 390: 1500}  # pixels of height by width


def main(pairs: list[str]) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--headless", "--no-sandbox"])
        if pairs == ["live"]:
            live(browser)
            pairs = []
        for pair in pairs:
            folder, _, name = pair.partition("=")
            name, _, chapter = name.partition("#")
            for width, shown in list(SHOWN.items())[: 1 if chapter else None]:
                tab = browser.new_page(viewport={"width": width, "height": 900})
                tab.goto((Path(folder) / "report.html").absolute().as_uri())
                top = tab.evaluate("name => document.getElementById(name)?.offsetTop ?? 0", chapter)
                height = min(shown, tab.evaluate("document.documentElement.scrollHeight") - top)
                path = IMAGES / f"report-{name}-{width}.png"
                tab.screenshot(path=path, full_page=True, clip={"x": 0, "y": top, "width": width, "height": height})
                print(path, path.stat().st_size)
                tab.close()
        browser.close()


def live(browser) -> None:
    """A run under way, and when it has ended."""
    with tempfile.TemporaryDirectory() as room:
        Path(room, "head.py").write_text(SLOW)
        command = [sys.executable, "-m", "unsoftmax", "recover", "head.py:target", "--live"]
        run = subprocess.Popen(command, cwd=room, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        tab = browser.new_page(viewport={"width": 1280, "height": 820})
        tab.goto(re.search(r"http://\S+", run.stderr.readline())[0])
        tab.wait_for_selector("#curve circle:nth-of-type(9)")
        tab.screenshot(path=IMAGES / "live-under-way.png")
        tab.wait_for_selector("header.good", timeout=120_000)
        tab.screenshot(path=IMAGES / "live-done.png")
        run.communicate()


if __name__ == "__main__":
    main(sys.argv[1:])
