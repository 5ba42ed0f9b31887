"""A software bill of materials: the packages of this environment as CycloneDX 1.5 JSON on standard output."""

import json
from importlib.metadata import distributions

from unsoftmax import __version__


def bill():
    """The whole document."""
    found = {}
    for package in distributions():
        name, version = package.metadata["Name"], package.version
        if not name or name == "unsoftmax":
            continue
        licence = package.metadata.get("License-Expression") or package.metadata.get("License")
        entry = {
            "type": "library",
            "name": name,
            "version": version,
            "purl": f"pkg:pypi/{name.lower().replace('_', '-')}@{version}",
        }
        if licence and len(licence) < 100:
            entry["licenses"] = [{"license": {"name": licence}}]
        found[name.lower()] = entry
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "unsoftmax", "version": __version__}},
        "components": [found[name] for name in sorted(found)],
    }


if __name__ == "__main__":
    print(json.dumps(bill(), indent=1))
