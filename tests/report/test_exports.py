"""Records for others' tools: what they read is what the JSON says, and nothing in it runs."""

import csv
import io
import json
import xml.etree.ElementTree as tree
from importlib import resources

import jsonschema
import pytest

from unsoftmax.report.exports import gates, kind, to_csv, to_junit, to_markdown, to_sarif

FILES = {"recover": "recovery", "audit": "audit", "diagnose": "diagnosis", "verify": "verification", "learn": "recovery"}


@pytest.fixture(params=FILES)
def record(request, folders):
    return json.loads((folders[request.param] / f"{FILES[request.param]}.json").read_text())


def test_every_record_follows_its_published_schema(record):
    schema = json.loads(resources.files("unsoftmax.report").joinpath(f"schemas/{kind(record)}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(record, schema, jsonschema.Draft202012Validator)
    for key in schema["required"]:
        short = {name: value for name, value in record.items() if name != key}
        with pytest.raises(jsonschema.ValidationError, match=key):
            jsonschema.validate(short, schema)


def test_csv_holds_the_numbers_unrounded(record):
    rows = list(csv.reader(io.StringIO(to_csv(record))))
    if "cells" in record:
        at = rows[0].index("error")
        assert [row[at] for row in rows[1:]] == ["" if c["error"] is None else repr(c["error"]) for c in record["cells"]]
    elif "evidence" in record and isinstance(record["evidence"], list):
        assert len(rows) == 1 + len(record["evidence"])
    else:
        assert ["/width", str(record["width"])] in rows


def test_text_that_a_spreadsheet_would_run_is_inert(record):
    record["target"] = "=cmd()"
    assert ",=cmd()" not in to_csv(record)


def test_markdown_begins_with_the_verdict(record):
    text = to_markdown(record)
    assert text.startswith(f"## {record.get('verdict') or record['status']}")
    assert "| --- |" in text


def test_junit_and_sarif_agree_with_the_gate(record):
    record["target"] = "a<b>&\x00"
    suite = tree.fromstring(to_junit(record))
    failed = [name for name, passed, _ in gates(record) if not passed]
    assert int(suite.get("failures")) == len(failed) == len(suite.findall(".//failure"))
    assert int(suite.get("tests")) == len(gates(record))
    sarif = json.loads(to_sarif(record))
    assert sarif["version"] == "2.1.0"
    assert len(sarif["runs"][0]["results"]) == len(failed)
    assert {result["ruleId"] for result in sarif["runs"][0]["results"]} <= {
        r["id"] for r in sarif["runs"][0]["tool"]["driver"]["rules"]
    }
