"""Records for others' tools: CSV, Markdown, JUnit XML and SARIF. All read the record that the JSON holds, and nothing else."""

from __future__ import annotations

import csv
import io
import json
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from unsoftmax.report.common import succeeded


def kind(record: dict[str, Any]) -> str:
    """What a record is of: "recovery", "audit", "diagnosis", "verification"."""
    return str(record["schema"]).removeprefix("unsoftmax-").partition("/")[0]


def rows(record: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Headings and rows: defences of an audit, evidence of a diagnosis, phases of a plan; else every plain value by its pointer."""
    columns = {
        "cells": "name outcome status queries total_queries error honest_cost honest_cost_relative price time seconds",
        "evidence": "test passed number bound threshold sentence",
        "phases": "name queries tokens",
    }
    for key, names in ((key, words.split()) for key, words in columns.items()):
        if isinstance(record.get(key), list) and record[key]:
            return names, [[item.get(name) for name in names] for item in record[key]]
    return ["key", "value"], [[key, value] for key, value in _flat(record)]


def to_csv(record: dict[str, Any]) -> str:
    """Rows as CSV, numbers unrounded; text that a spreadsheet would run as a formula is quoted.

    >>> print(to_csv({"schema": "unsoftmax-recovery/1", "status": "EXACT", "note": "=1+1"}), end="")
    key,value
    /schema,unsoftmax-recovery/1
    /status,EXACT
    /note,'=1+1
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    headings, body = rows(record)
    writer.writerow(headings)
    writer.writerows([[_inert(value) for value in row] for row in body])
    return text.getvalue()


def to_markdown(record: dict[str, Any]) -> str:
    """The verdict, what it means, and the rows as a table."""
    headings, body = rows(record)
    lines = [f"## {verdict(record)}", "", sentence(record), ""]
    if headings == ["key", "value"]:
        body = [row for row in body if row[0].count("/") == 1]
    lines += ["| " + " | ".join(headings) + " |", "|" + " --- |" * len(headings)]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in body]
    return "\n".join([*lines, "", f"unsoftmax {record['version']}, {record['date']}, `{record.get('command') or 'Python'}`", ""])


def to_junit(record: dict[str, Any]) -> str:
    """One test suite: the gate or verdict as its test cases."""
    cases = gates(record)
    failed = sum(not passed for _, passed, _ in cases)
    body = "".join(
        f"    <testcase classname={quoteattr('unsoftmax.' + kind(record))} name={quoteattr(name)}>"
        + ("" if passed else f"<failure message={quoteattr(_clean(words))}>{escape(_clean(words))}</failure>")
        + "</testcase>\n"
        for name, passed, words in cases
    )
    head = f'tests="{len(cases)}" failures="{failed}" errors="0" time="{record.get("seconds") or 0:.3f}"'
    name = quoteattr(f"unsoftmax {kind(record)} of {_clean(str(record.get('target')))}")
    suite = f"  <testsuite name={name} {head}>\n{body}  </testsuite>\n"
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites {head}>\n{suite}</testsuites>\n'


def to_sarif(record: dict[str, Any]) -> str:
    """SARIF 2.1.0: a result for every gate that failed."""
    rule = {
        "id": f"unsoftmax/{kind(record)}",
        "shortDescription": {"text": "Model extraction through the inference interface (MITRE ATLAS AML.T0024.002)"},
        "helpUri": "https://atlas.mitre.org/techniques/AML.T0024.002",
    }
    found = [
        {
            "ruleId": rule["id"],
            "level": "error",
            "message": {"text": f"{name}: {words}"},
            "locations": [{"logicalLocations": [{"name": str(record.get("target")), "kind": "resource"}]}],
            "properties": {"verdict": verdict(record), "exit_code": record.get("exit_code")},
        }
        for name, passed, words in gates(record)
        if not passed
    ]
    driver = {"name": "unsoftmax", "version": record["version"], "rules": [rule]}
    run = {
        "tool": {"driver": driver},
        "results": found,
        "invocations": [{"executionSuccessful": True, "endTimeUtc": record["date"]}],
    }
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def gates(record: dict[str, Any]) -> list[tuple[str, bool, str]]:
    """What is to be tested: (name, passed, words) for the gate of an audit, the match of a verification, the end of a run."""
    what = kind(record)
    if what == "audit":
        gate = record["gate"]
        name = "no gate was set" if gate is None else f"gate: {gate['condition']}"
        return [(name, record["exit_code"] == 0, record["sentence"])]
    if what in ("verification", "deployment"):
        return [("the target answers as these weights do", bool(record["matches"]), sentence(record))]
    if what == "comparison":
        return [("not worse protected than before", record["verdict"] != "WORSE PROTECTED", record["sentence"])]
    if what == "diagnosis":
        return [(item["test"], bool(item["passed"]), item["sentence"]) for item in record["evidence"]]
    return [("recovered and checked", succeeded(record["status"]), record["message"])]


def verdict(record: dict[str, Any]) -> str:
    """The one word that everything ends with."""
    return str(record.get("verdict") or record.get("status"))


def sentence(record: dict[str, Any]) -> str:
    """The verdict in words."""
    if kind(record) == "verification":
        from unsoftmax.report.verification import sentence as told

        return told(record)
    return str(record.get("sentence") or record.get("reason") or record.get("message") or "")


def _flat(value: Any, at: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [pair for key, item in value.items() for pair in _flat(item, f"{at}/{key}")]
    if isinstance(value, list):
        return [pair for key, item in enumerate(value) for pair in _flat(item, f"{at}/{key}")]
    return [(at, value)]


def _inert(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def _cell(value: Any) -> str:
    text = "–" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _clean(text: str) -> str:
    """Without the control characters that XML cannot hold."""
    return "".join(c for c in text if c >= " " or c in "\n\t")
