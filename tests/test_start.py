"""What a start costs: processor time, which other jobs on the machine disturb least, and megabytes of the core."""

import resource
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

HEAVY = ("torch", "onnxruntime", "grpcio", "mlserver", "distributed", "cvxpy", "pandas", "matplotlib")


def processor_seconds(*arguments):
    """The best of three runs, the interpreter's own start included."""
    found = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found)


@pytest.mark.parametrize(("arguments", "most"), [(("-c", "import unsoftmax"), 0.3), (("-m", "unsoftmax", "--help"), 0.4)])
def test_a_start_is_quick(arguments, most):
    assert processor_seconds(*arguments) < most


def test_the_core_needs_nothing_heavy():
    needs = [need for need in metadata.requires("unsoftmax") or [] if "extra ==" not in need]
    assert needs
    assert not [need for need in needs if need.lower().startswith(HEAVY)]


def test_the_core_is_small():
    sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
    try:
        from start import megabytes, packages
    finally:
        sys.path.pop(0)
    core = packages("unsoftmax", set())
    assert {"numpy", "scipy", "click"} <= core
    assert not core & set(HEAVY)
    assert 100 < megabytes(core) < 300
