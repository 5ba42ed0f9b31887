import json
from html.parser import HTMLParser

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.report import figures, recovery_json, recovery_record
from unsoftmax.report.page import recovery_page
from unsoftmax.report.story import chapters, verdict

HEAD = us.Attention.single(np.diag([1.0, 2.0, 3.0]), [1.0, 1.0, 2.0])
HOSTILE = '<script>alert(1)</script>"\x1b[31m'


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.sources = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.sources += [value for name, value in attrs if name in ("src", "href")]
        if tag == "img":
            assert dict(attrs)["alt"]


@pytest.fixture(scope="module")
def recovered():
    return us.recover(HEAD)


def test_one_verdict_feeds_every_view(recovered):
    record = recovery_record(recovered)
    assert json.loads(recovery_json(recovered)) == record
    assert verdict(record) == "RECOVERED EXACTLY"
    page = recovery_page(recovered)
    assert verdict(record) in page
    for chapter in chapters(record):
        assert chapter.title in page


def test_the_page_is_self_contained(recovered):
    page = Page(recovery_page(recovered))
    assert "script" not in page.tags
    assert "svg" in page.tags
    assert all(source.startswith("data:image/png") for source in page.sources)


def test_hostile_text_stays_text(recovered):
    recovered.facts["target"] = HOSTILE
    try:
        text = recovery_page(recovered)
    finally:
        del recovered.facts["target"]
    assert "script" not in Page(text).tags
    assert "&lt;script&gt;" in text


def test_a_refusal_leaves_no_weights_behind(tmp_path):
    us.recover(HEAD).save(tmp_path)
    assert (tmp_path / "weights.safetensors").exists()
    us.recover(lambda X: np.full(len(X), np.nan), width=3, on_failure="return").save(tmp_path)
    assert not (tmp_path / "weights.safetensors").exists()
    assert json.loads((tmp_path / "recovery.json").read_text())["status"] == "TARGET_FAILED"
    assert "NOT RECOVERED" in (tmp_path / "report.html").read_text()


def test_pictures_tell_their_numbers():
    wide = np.arange(200.0 * 130).reshape(200, 130) - 9000
    assert "200 by 130 entries, from -9e+03 to 1.7e+04" in figures.heat_map(wide, "W")
    assert "0.5" in figures.bars([0.5, 0.0], ["a", "<b>"], "Errors", logarithmic=True)
    assert "&lt;b&gt;" in figures.bars([1, 2], ["a", "<b>"], "Counts")
    assert "smallest 0" in figures.line([2.0, 1.0, 0.0], "Singular values")


def test_numbers_that_json_cannot_hold_become_null(recovered):
    recovered.facts["odd"] = {"a": np.float64("nan"), "b": np.arange(2), "c": (1, {2}), "d": np.int64(3)}
    try:
        odd = json.loads(recovery_json(recovered))["odd"]
    finally:
        del recovered.facts["odd"]
    assert odd == {"a": None, "b": [0, 1], "c": [1, "{2}"], "d": 3}
