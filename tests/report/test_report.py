import json
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from markupsafe import escape

import unsoftmax as us
from unsoftmax.accounts import Account
from unsoftmax.demo import demo_model
from unsoftmax.evidence import Evidence
from unsoftmax.oracles import CallableOracle, Noisy, Rounded
from unsoftmax.report import figures, recovery_json, recovery_record
from unsoftmax.report.map_figure import heat_map
from unsoftmax.report.page import page
from unsoftmax.report.story import by_length, chapters, recovery_report, verdict
from unsoftmax.report.told import Teller, step

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
        if tag == "svg":
            assert dict(attrs)["aria-label"]


def recovery_page(recovery):
    return page(recovery_report(recovery_record(recovery), recovery.model))


@pytest.fixture(scope="module")
def recovered():
    return us.recover(HEAD)


def test_one_verdict_feeds_every_view(recovered):
    record = recovery_record(recovered)
    assert json.loads(recovery_json(recovered)) == record
    assert verdict(record) == "RECOVERED EXACTLY"
    text = recovery_page(recovered)
    assert verdict(record) in text
    for chapter in chapters(Teller(record)):
        assert chapter.title in text
    for identifier in ("AML.T0024.002", "AML.M0002", "AML.M0004", "ML05:2023", "NISTAML.031", "permission"):
        assert identifier in text


@pytest.mark.parametrize("coarse", [lambda o: Noisy(o, 1e-3), lambda o: Rounded(o, decimals=3), lambda o: Rounded(o, digits=4)])
def test_a_coarse_target_is_told_the_tolerance_that_it_was_held_to(coarse):
    record = recovery_record(us.recover(coarse(CallableOracle(HEAD)), max_norm=3.0))
    assert record["status"] == "WITHIN_TOLERANCE"
    assert 1e-8 < record["check"]["relative_error"] <= record["tolerance"]


def test_the_page_is_self_contained(recovered):
    read = Page(recovery_page(recovered))
    assert "script" not in read.tags
    assert "svg" in read.tags
    assert all(source.startswith(("data:", "#")) for source in read.sources)


def test_hostile_text_stays_text(recovered):
    text = recovery_page(recovered.of(target=HOSTILE, command=HOSTILE, authorised_by=HOSTILE, date="2026-11-18"))
    assert "script" not in Page(text).tags
    assert "&lt;script&gt;" in text


def test_a_refusal_leaves_no_weights_behind(tmp_path):
    us.recover(HEAD).save(tmp_path)
    assert (tmp_path / "weights.safetensors").exists()
    us.recover(lambda X: np.full(len(X), np.nan), width=3, on_failure="return").save(tmp_path)
    assert not (tmp_path / "weights.safetensors").exists()
    assert json.loads((tmp_path / "recovery.json").read_text())["status"] == "TARGET_FAILED"
    assert "NOT RECOVERED" in (tmp_path / "report.html").read_text()


def test_pictures_of_any_size_are_drawn():
    wide = np.arange(200.0 * 130).reshape(200, 130) - 9000
    assert heat_map(wide, "<W>").count("<image") == 2  # the map and its colour scale
    assert "&lt;W&gt;" in heat_map(np.zeros((1, 1)), "<W>")
    assert "&lt;b&gt;" in figures.bars([("<b>", 1, "1"), ("none", None, "–")])
    assert "width:100.0%" in figures.bars([("a", 1.0, "1"), ("b", 0.0, "0")], logarithmic=True)
    assert "mark" in figures.falling([2.0, 1.0, 0.0], "Singular values", mark=2)
    assert figures.falling([0.0], "Singular values").count("<circle") == 1
    assert figures.signed([1.0, -1.0, 0.0], "V").count("<rect") == 3


@pytest.mark.parametrize("family", ["transformer", "ffn"])
def test_networks_have_their_pictures(family):
    model = demo_model(family, width=3, hidden=4)
    found = us.Recovery(model=model, status=us.Status.EXACT, queries=9, check=None, bounds=None, ambiguity="", message="")
    read = Page(recovery_page(found))
    assert read.tags.count("image") == 2 * (2 if family == "ffn" else 4)


def test_many_heads_are_not_all_drawn():
    rng = np.random.default_rng(0)
    model = us.Attention(rng.normal(size=(20, 2, 2)), rng.normal(size=(20, 2)))
    account = Account(width=2, sizes=model.sizes(None))
    found = us.Recovery(
        model=model, status=us.Status.EXACT, queries=9, check=None, bounds=None, ambiguity="", message="", account=account
    )
    text = recovery_page(found)
    open_part = text[: text.index("<details>")]
    assert Page(text).tags.count("image") == 2 * 16
    assert Page(open_part).tags.count("image") == 2 * 2  # the others are folded
    assert "16 of 20 heads are drawn" in text


def test_errors_by_length_are_a_bar_for_each_doubling():
    tell = Teller({"check": {"by_length": {"1": 1e-9, "2": 1e-8, "3": 3e-8, "4": 2e-8, "200": 5e-9, "256": 0.0}}})
    ((figure,),) = by_length(tell)
    assert [name in figure.drawing for name in (">1 token<", ">2 tokens<", "3 to 4 tokens", "200 to 256 tokens")] == [True] * 4
    assert figure.drawing.count("<li>") == 4
    assert 'data-json="/check/by_length/3"' in figure.drawing
    assert 'data-json="/check/by_length/200"' in figure.drawing


def test_a_refusal_tells_its_reason_once_and_what_to_do(tmp_path):
    refused = us.recover(lambda X: np.tanh(X[:, 0, 0] ** 3), width=3, on_failure="return")
    text = recovery_page(refused)
    assert text.count(str(escape(refused.message))) == 1
    assert "<h2>What now</h2>" in text
    assert "<h2>What was tested on the way</h2>" in text


def test_the_check_says_what_it_covers(recovered):
    record = recovery_record(recovered)
    assert record["check"]["covers"] == recovered.check.covers
    assert str(escape(recovered.check.covers[1:-1])) in recovery_page(recovered)


def test_pointers_name_any_key():
    tell = Teller({"a/b": {"~": [3, None, True, "word"]}}, "/root")
    at = f"/{step('a/b')}/{step('~')}"
    assert str(tell(f"{{{at}/0:.1e}} {{{at}/1}} {{{at}/2}} {{{at}/3}}")) == "3.0e+00 – yes word"
    assert 'data-json="/root/a~1b/~0/0"' in tell(f"{{{at}/0}}").__html__()


def test_numbers_that_json_cannot_hold_become_null(recovered):
    more = Evidence({"odd": {"a": np.float64("nan"), "b": np.arange(2), "c": (1, {2}), "d": np.int64(3)}})
    odd = json.loads(recovery_json(replace(recovered, account=replace(recovered.account, more=more))))["odd"]
    assert odd == {"a": None, "b": [0, 1], "c": [1, "{2}"], "d": 3}
