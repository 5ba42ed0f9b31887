"""One page of each kind, written by the command line, and one browser to read them in."""

import os
import shutil

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.audits import Defence, sweep
from unsoftmax.cli import run

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
TABLE = (
    Defence(name="none"),
    Defence(name="3 decimals", decimals=3),
    Defence(name="quota 8", quota=8),
    Defence(name="rate limit 1/s", rate=1.0),
)
TARGET = "demo:attention,width=6,rank=2,bias=1,seed=6"


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """A finished run of each command, by its name."""
    root = tmp_path_factory.mktemp("pages")
    weights = root / "recover" / "weights.safetensors"
    rng = np.random.default_rng(0)
    layer = us.Attention(W=rng.normal(size=(1, 4, 4)), V=rng.normal(size=(1, 4, 4)))
    examples = rng.normal(size=(60, 4, 4))
    np.savez(root / "examples.npz", X=examples, Y=layer(examples, "all"))
    calls = {
        "recover": ["recover", TARGET],
        "diagnose": ["diagnose", TARGET],
        "verify": ["verify", TARGET, weights],
        "learn": ["learn", root / "examples.npz"],
        "audit": ["audit", TARGET, "--price", "2", "--rate", "10", "--fail-if", "queries<100000 and error<1e-3"],
        "compare": ["compare", root / "audit", root / "audit"],
        "stack": ["recover", "demo:stack,layers=2,heads=2,width=20,rank=3"],
        "decoder": ["recover", "demo:decoder,layers=1,heads=2,width=12,rank=4"],
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "standard_defences", lambda *_: TABLE)
        patch.setattr(sweep.os, "cpu_count", lambda: 1)
        for name, words in calls.items():
            assert run([*map(str, words), "--out", str(root / name)]) == (1 if name == "audit" else 0)
    return {name: root / name for name in calls}


@pytest.fixture(scope="module")
def browser():
    """A Chromium without network; ``make test`` installs one where it may."""
    found = os.environ.get("UNSOFTMAX_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("No Chromium on this machine; install one (apt-get install chromium) or name it in UNSOFTMAX_BROWSER.")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield chromium
        chromium.close()
