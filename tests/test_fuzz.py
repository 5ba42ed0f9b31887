"""A short round of the fuzzing that ``make fuzz`` does with 100,000 cases for each reader."""

import pytest

from fuzz import fuzz, readers

pytest.importorskip("grpc")
CASES = {"http codec": 2000, "grpc messages": 2000, "words": 1000, "npz files": 300, "safetensors": 300, "journals": 60}


@pytest.mark.parametrize("name", CASES)
def test_changed_bytes_are_read_or_refused_by_name(name, tmp_path):
    samples, read = readers(tmp_path)[name]
    refused = fuzz(name, samples, read, CASES[name], seed=24)
    assert CASES[name] // 100 < refused <= CASES[name]
