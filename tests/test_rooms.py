"""Imports go one way through the house, and a fault of ours is never taken for the target's."""

import ast
from pathlib import Path

import numpy as np
import pytest

import unsoftmax as us

SOURCE = Path(us.__file__).parent
# each room may import from itself and from the rooms before it
ORDER = [
    {"errors", "__init__", "safe_files", "memory", "brevity", "version", "watching"},
    {"models"},
    {"linalg", "symmetry", "bills", "fitting"},
    {"oracles"},
    {"precision", "results", "probes", "wishes"},
    {"learners"},
    {"proof"},
    {"desk"},
    {"recognition", "families"},
    {"candidates", "planning", "recorded"},
    {"driver", "diagnosing", "verification", "demo", "deployment"},
    {"audits"},
    {"report", "serving"},
    {"cli", "__main__", "live", "auditing", "opening", "plans"},
]
ALLOWED = {
    ("results", "report"),  # ``save`` and the short forms of results, imported when called
    ("models", "report"),
    ("brevity", "report"),
    ("audits", "report"),
    ("deployment", "cli"),  # FILE.py:NAME is opened as on the command line
    ("learners", "proof"),
    ("families", "planning"),  # bills are counted where they are asked for
    ("demo", "families"),
    ("symmetry", "learners"),
}


def room_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).parts
    return parts[0].removesuffix(".py")


def rank(room: str) -> int:
    return next((i for i, rooms in enumerate(ORDER) if room in rooms), -1)


def imports(path: Path) -> set[str]:
    found = set()
    tree = ast.parse(path.read_text())
    for node in list(ast.walk(tree)):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []  # names of types alone
    for node in ast.walk(tree):
        names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found |= {name.split(".")[1] for name in names if name and name.startswith("unsoftmax.")}
    return found


FILES = sorted(SOURCE.rglob("*.py"))


def test_every_room_has_its_place():
    assert {room_of(path) for path in FILES} <= set().union(*ORDER)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_one_way(path):
    here = room_of(path)
    if here == "__init__":
        return
    for there in imports(path):
        assert rank(there) <= rank(here) or (here, there) in ALLOWED, f"{here} imports {there}"


def test_no_learner_sees_a_target():
    for path in FILES:
        if room_of(path) == "learners":
            assert not {"desk", "driver", "families", "cli"} & imports(path), path


def test_models_are_told_apart_only_where_their_mathematics_lives():
    kinds = {"Attention", "FFN", "Transformer", "GatedFFN", "Stack", "Decoder"}
    for path in FILES:
        if room_of(path) in ("models", "symmetry"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                named = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
                assert not kinds & named, f"{path.relative_to(SOURCE)}:{node.lineno}"


def test_nobody_compares_the_kind_of_a_floor():
    for path in FILES:
        if room_of(path) == "precision":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                floors = [s for s in sides if isinstance(s, ast.Attribute) and s.attr == "kind" and "floor" in ast.unparse(s.value)]
                assert not floors, f"{path.relative_to(SOURCE)}:{node.lineno}"


@pytest.mark.parametrize("fault", [TypeError, KeyError, AttributeError, IndexError, ValueError])
def test_a_fault_of_ours_is_a_crash_and_no_verdict(monkeypatch, fault):
    head = us.Attention.single(np.eye(4), np.ones(4))

    def broken(*args, **settings):
        raise fault("operands could not be broadcast together")

    monkeypatch.setattr("unsoftmax.learners.one_head.learner.read_score_matrix", broken)
    with pytest.raises(fault, match="broadcast"):
        us.recover(head, on_failure="return")
    monkeypatch.setattr("unsoftmax.proof.run.fresh_batches", broken)
    with pytest.raises(fault, match="broadcast"):
        us.recover(head, on_failure="return")
