"""The live page in a real browser: a run is watched to its end, and the page stays readable after it."""

import os
import re
import subprocess
import sys
import time

import pytest
from axe_playwright_python.sync_playwright import Axe

SLOW = """
import time
import numpy as np
import unsoftmax as us

rng = np.random.default_rng(3)
head = us.Attention.single(W=rng.normal(size=(16, 16)) / 4, v=rng.normal(size=16))


class Slow:
    width = 16

    def __call__(self, X):
        time.sleep(0.06)
        return head(X)


target = Slow()
"""


@pytest.fixture
def watched(browser, tmp_path):
    """Starts a command with --live and opens its page: the process, the tab, what it complained of, what it asked for."""
    started = []

    def start(*words):
        command = [sys.executable, "-m", "unsoftmax", *map(str, words), "--live"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        run = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        started.append(run)
        address = re.search(r"http://127\.0\.0\.1:\d+/\S+", run.stderr.readline())[0]
        tab = browser.new_page()
        faults, requests = [], []
        tab.on("console", lambda message: faults.append(message.text))
        tab.on("pageerror", lambda error: faults.append(str(error)))
        tab.on("request", lambda request: requests.append(request.url))
        tab.goto(address)
        return run, tab, faults, requests, address

    yield start
    for run in started:
        if run.poll() is None:
            run.kill()
        run.stderr.close()
        run.wait()


def test_a_recovery_is_watched_to_its_end(watched, tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    run, tab, faults, requests, address = watched("recover", "slow.py:target", "--out", "out")
    tab.wait_for_selector("#maps svg", timeout=30_000)
    tab.wait_for_selector("#curve svg circle")
    assert re.match(r"[\d,]+ of about [\d,]+ queries", tab.text_content("#words"))
    early = tab.locator("#curve svg circle").count()
    shares = [int(tab.get_attribute("#progress", "aria-valuenow"))]
    tab.wait_for_selector("header.good", timeout=60_000)
    assert run.wait(timeout=30) == 0
    assert tab.locator("#curve svg circle").count() > early
    shares.append(int(tab.get_attribute("#progress", "aria-valuenow")))
    assert shares[0] < shares[1] == 100
    time.sleep(0.5)  # the server is gone; the page is not
    assert "RECOVERED EXACTLY" in tab.text_content("h1")
    assert "RECOVERED EXACTLY" in tab.title()
    assert "verify slow.py:target" in tab.text_content("#next code")
    for width in (1280, 390):
        tab.set_viewport_size({"width": width, "height": 900})
        assert tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    assert faults == []
    assert all(url.startswith((address, "data:")) for url in requests)


def test_rows_of_an_audit_finish_one_by_one_and_the_page_is_accessible(watched, browser):
    words = ("audit", "demo:attention,width=3", "--defence", "quota 5", "--defence", "2 decimals", "--budget", "900", "--seed", "1")
    run, tab, faults, _, _ = watched(*words)
    tab.wait_for_selector("header.bad", timeout=60_000)
    assert run.wait(timeout=30) == 0
    rows = [row.split("\t") for row in tab.inner_text("#rows").split("\n") if row.strip()]
    assert sorted(row[0] for row in rows) == ["2 decimals", "none", "quota 5"]
    assert {row[0]: row[3] for row in rows}["quota 5"] == "no copy"
    assert tab.text_content("h1") == "✕ EXTRACTABLE"
    tab.context.set_extra_http_headers({})
    script = Axe()
    tab.route("**/*", lambda route: route.fulfill(body=page, content_type="text/html"))
    page = tab.content().replace('<script src="live.js" defer=""></script>', "")
    page = page.replace('<link rel="stylesheet" href="live.css">', f"<style>{_style()}</style>")
    tab.goto("http://127.0.0.1/")
    found = script.run(tab).response["violations"]
    assert [(v["id"], [n["html"] for n in v["nodes"]]) for v in found] == []
    assert faults == []


def _style():
    from importlib import resources

    from unsoftmax.report.page import stylesheet

    return stylesheet() + resources.files("unsoftmax.live").joinpath("templates/live.css").read_text()


def test_a_run_that_is_stopped_leaves_a_page_that_says_so(watched, tmp_path):
    (tmp_path / "slow.py").write_text(SLOW.replace("0.06", "0.5"))
    run, tab, _, _, _ = watched("recover", "slow.py:target")
    tab.wait_for_selector("#spent:not([hidden])", timeout=30_000)
    run.kill()
    tab.wait_for_selector("header.lost", timeout=30_000)
    assert "does not answer" in tab.text_content("h1")
    assert "queries" in tab.text_content("#words")
