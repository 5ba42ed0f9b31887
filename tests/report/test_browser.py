"""The pages as a reader meets them: in a real browser, on a desk, on a phone and on paper."""

import json
import re

import pytest
from axe_playwright_python.sync_playwright import Axe

import unsoftmax as us
from unsoftmax.report.audit_story import audit_report
from unsoftmax.report.diagnosis import diagnosis_report
from unsoftmax.report.page import page
from unsoftmax.report.story import recovery_report
from unsoftmax.report.verification import verification_report

FILES = {
    "recover": "recovery.json",
    "audit": "audit.json",
    "diagnose": "diagnosis.json",
    "verify": "verification.json",
    "learn": "recovery.json",
    "compare": "comparison.json",
    "stack": "recovery.json",
    "decoder": "recovery.json",
}
HOSTILE = "</title><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>\"'{{7*7}}{/seed}<b>\x1b[31m" + "w" * 300
NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?\b")
READ = """() => {
    const numbers = [...document.querySelectorAll("[data-json]")].map(e => [e.dataset.json, e.value, e.textContent]);
    const rest = document.body.cloneNode(true);
    rest.querySelectorAll("data, svg, ul.bars .name, .scale").forEach(e => e.remove());
    const told = [...document.querySelectorAll("[alt], [aria-label]")].map(e => e.alt || e.getAttribute("aria-label"));
    return {numbers, rest: rest.textContent, told};
}"""


class Reader:
    """One tab, and all that the page in it complained of or asked for."""

    def __init__(self, browser):
        self.faults, self.requests = [], []
        self.tab = browser.new_page()
        self.tab.on("console", lambda message: self.faults.append(message.text))
        self.tab.on("pageerror", lambda error: self.faults.append(str(error)))
        self.tab.on("request", lambda request: self.requests.append(request.url))

    def open(self, path, width):
        self.faults.clear()
        self.requests.clear()
        self.tab.set_viewport_size({"width": width, "height": 900})
        self.tab.goto(path.as_uri())

    def overflow(self):
        return self.tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


@pytest.fixture(scope="module")
def reader(browser):
    return Reader(browser)


@pytest.mark.parametrize("name", FILES)
def test_a_page_reads_well_asks_for_nothing_and_tells_the_numbers_of_the_json(reader, folders, name):
    path = folders[name] / "report.html"
    for width in (390, 1280):
        reader.open(path, width)
        assert reader.overflow() <= 0
        reader.tab.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
        assert reader.overflow() <= 0
        found = Axe().run(reader.tab)
        assert [(v["id"], [n["html"] for n in v["nodes"]]) for v in found.response["violations"]] == []
        assert reader.faults == []
        assert [url for url in reader.requests if not url.startswith("data:")] == [path.as_uri()]
    compare(reader.tab.evaluate(READ), (folders[name] / FILES[name]).read_text())


def compare(read, text):
    """Every marked number is the JSON's, shown as its rounding; every other one stands there too."""
    record = json.loads(text)
    assert len(read["numbers"]) > 8
    for pointer, value, shown in read["numbers"]:
        stands = record
        for key in pointer.split("/")[1:]:
            stands = stands[int(key)] if isinstance(stands, list) else stands[key]
        assert float(value) == stands, pointer
        assert float(shown.replace(",", "")) == pytest.approx(stands, abs=last_place(shown)), pointer
    rounded = {format(abs(number), form) for number in numbers_in(record) for form in (".3g", ",")}
    for token in NUMBER.findall(read["rest"] + " ".join(read["told"])):
        assert token in text or token in rounded, token


def last_place(shown):
    """Half a unit of the last digit that is shown, and a little."""
    digits, _, power = shown.replace(",", "").partition("e")
    return 0.501 * 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))


def numbers_in(value):
    """Every number of a JSON document."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from numbers_in(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def poisoned(value, key=""):
    """The record with hostile text wherever a stranger may have a say."""
    if isinstance(value, dict):
        return {k: poisoned(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [poisoned(v, key) for v in value]
    fixed = ("status", "verdict", "family", "kind", "outcome", "version", "answers", "layout")
    return HOSTILE if isinstance(value, str) and key not in fixed else value


def test_hostile_text_does_nothing(reader, folders, tmp_path):
    records = {name: poisoned(json.loads((folders[name] / file).read_text())) for name, file in FILES.items()}
    model = us.load(folders["recover"] / "weights.safetensors")
    layer = us.load(folders["learn"] / "weights.safetensors")
    reports = {
        "recover": recovery_report(records["recover"], model),
        "stack": recovery_report(records["stack"], us.load(folders["stack"] / "weights.safetensors")),
        "learn": recovery_report(records["learn"], layer),
        "audit": audit_report(records["audit"], model),
        "diagnose": diagnosis_report(records["diagnose"]),
        "verify": verification_report(records["verify"], model),
    }
    for name, report in reports.items():
        path = tmp_path / f"{name}.html"
        path.write_text(page(report))
        reader.open(path, 390)
        assert "window.hacked=1" in reader.tab.text_content("body")
        assert reader.tab.evaluate("window.hacked === undefined && document.scripts.length === 0")
        assert reader.tab.title().endswith("· unsoftmax")
        assert reader.faults == []
        assert [url for url in reader.requests if not url.startswith("data:")] == [path.as_uri()]
        assert reader.overflow() <= 0, name


def test_paper(reader, folders):
    reader.open(folders["audit"] / "report.html", 794)  # A4 at 96 dots an inch
    reader.tab.emulate_media(media="print")
    assert reader.overflow() <= 0
    assert reader.tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgba(0, 0, 0, 0)"
    pdf = reader.tab.pdf(format="A4")
    reader.tab.emulate_media(media="screen")
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 8
