"""Imports go one way through the house, and a fault of ours is never taken for the target's."""

import ast
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import unsoftmax as us

SOURCE = Path(us.__file__).parent
# each room may import from itself and from the rooms before it
ORDER = [
    {"errors", "evidence", "__init__", "safe_files", "memory", "brevity", "version", "watching"},
    {"models"},
    {"linalg", "symmetry", "bills", "fitting"},
    {"oracles"},
    {"precision", "accounts", "results", "probes", "wishes"},
    {"learners"},
    {"proof"},
    {"desk"},
    {"recognition", "families"},
    {"deciding", "planning", "recorded"},
    {"candidates", "rounding"},
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


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Every node of a file, its module first."""
    return list(ast.walk(ast.parse(path.read_text())))


@pytest.fixture(scope="module", autouse=True)
def _let_go():
    """600,000 nodes would slow every collection of garbage in the tests after these."""
    yield
    nodes.cache_clear()


def imports(path: Path) -> set[str]:
    guarded = [node for node in nodes(path) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    types_alone = {inner for node in guarded for part in node.body for inner in ast.walk(part)}
    found = set()
    for node in nodes(path):
        if node in types_alone:
            continue
        names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found |= {name.split(".")[1] for name in names if name and name.startswith("unsoftmax.")}
    return found


FILES = sorted(SOURCE.rglob("*.py"))
# where the outside world is met: foreign exceptions become ours there, and connections are tried again
EDGES = {"oracles", "cli", "serving", "deployment", "audits", "report", "models", "probes", "opening", "memory", "safe_files"}
DECIDING = 7  # handlers that make a choice of an exception of ours, or of arithmetic
CONSTANTS = 374  # names in capitals at the top of modules
UNREASONED = 0.35  # share of the fields of a room's settings that may go without a comment of their own


def test_every_room_has_its_place():
    assert {room_of(path) for path in FILES} <= set().union(*ORDER)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_one_way(path):
    here = room_of(path)
    if here == "__init__":
        return
    for there in imports(path):
        assert rank(there) <= rank(here) or (here, there) in ALLOWED, f"{here} imports {there}"


def test_parts_of_scipy_that_take_long_are_imported_when_they_are_first_used():
    """``import scipy`` brings them then; at the top of modules these two took a sixth of the time of a small recovery."""
    for path in FILES:
        at_top = [node.module or "" for node in nodes(path)[0].body if isinstance(node, ast.ImportFrom)]
        assert not [name for name in at_top if name.startswith(("scipy.optimize", "scipy.sparse"))], path


def test_no_learner_sees_a_target():
    for path in FILES:
        if room_of(path) == "learners":
            assert not {"desk", "driver", "families", "cli"} & imports(path), path


def test_models_are_told_apart_only_where_their_mathematics_lives():
    kinds = {"Attention", "FFN", "Transformer", "GatedFFN", "Stack", "Decoder"}
    for path in FILES:
        if room_of(path) in ("models", "symmetry"):
            continue
        for node in nodes(path):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                named = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
                assert not kinds & named, f"{path.relative_to(SOURCE)}:{node.lineno}"


def test_nobody_compares_the_kind_of_a_floor():
    for path in FILES:
        if room_of(path) == "precision":
            continue
        for node in nodes(path):
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                floors = [s for s in sides if isinstance(s, ast.Attribute) and s.attr == "kind" and "floor" in ast.unparse(s.value)]
                assert not floors, f"{path.relative_to(SOURCE)}:{node.lineno}"


def test_nothing_is_decided_on_the_numbers_of_a_report():
    """``evidence`` is written for people: whoever needs one of its numbers has it as a field, never by its name in there."""
    for path in FILES:
        if room_of(path) == "deployment":  # nats of hypotheses, which are no report
            continue
        for node in nodes(path):
            read = node.value if isinstance(node, ast.Subscript) else None
            if isinstance(node, ast.Attribute) and node.attr in ("get", "pop", "setdefault", "items", "keys", "values"):
                read = node.value
            name = read.attr if isinstance(read, ast.Attribute) else read.id if isinstance(read, ast.Name) else ""
            assert name != "evidence", f"{path.relative_to(SOURCE)}:{node.lineno}"


def test_nobody_reads_or_writes_a_result_by_names_in_a_dict():
    """``facts`` of a recovery or an audit is a view for people, made of typed fields: the package itself reads those fields."""
    lists = {"desk", "quick", "chapter", "c", "self"}  # of ``Fact``, or rows of a chapter
    for path in FILES:
        for node in nodes(path):
            read = isinstance(node, ast.Attribute) and node.attr == "facts" and ast.unparse(node.value) not in lists
            assert not read, f"{path.relative_to(SOURCE)}:{node.lineno}"


def test_families_are_spelled_out_in_their_own_room_alone():
    """Whoever needs to know more of a family asks it, so that another one touches no list elsewhere."""
    names = {
        "smooth-ffn",
        "smooth-transformer",
        "near-ffn",
        "gated-ffn",
        "gated-transformer",
        "squared-ffn",
    }  # which no other thing is called
    for path in FILES:
        spelled = {node.value for node in nodes(path) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        assert room_of(path) == "families" or not names & spelled, path


def our_exceptions() -> set[str]:
    bases = {
        node.name: {ast.unparse(base).split(".")[-1] for base in node.bases}
        for path in FILES
        for node in nodes(path)
        if isinstance(node, ast.ClassDef)
    }
    known = {"Exception"}
    while more := {name for name, above in bases.items() if above & known} - known:
        known |= more
    return known - {"Exception"}


def caught(handler: ast.ExceptHandler) -> set[str]:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {ast.unparse(kind).split(".")[-1] for kind in kinds if kind is not None}


def test_few_handlers_decide():
    """One that ends by raising translates; one that catches an exception of ours, or of arithmetic, and goes on decides."""
    names = our_exceptions() | {"kinds", "ArithmeticError"}  # ``kinds``: the one place that makes values of refusals
    deciding = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in FILES
        for node in nodes(path)
        if isinstance(node, ast.ExceptHandler)
        and room_of(path) not in EDGES
        and caught(node) & names
        and not isinstance(node.body[-1], ast.Raise)
    ]
    assert len(deciding) <= DECIDING, deciding


def constants(path: Path) -> list[str]:
    named = []
    for node in nodes(path)[0].body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        each = [name for target in targets for name in (target.elts if isinstance(target, ast.Tuple) else [target])]
        named += [name.id for name in each if isinstance(name, ast.Name) and name.id.isupper() and len(name.id) > 1]
    return named


def test_module_constants_only_become_fewer():
    by_room: dict[str, int] = {}
    for path in FILES:
        room = "/".join(path.relative_to(SOURCE).parts[:2] if room_of(path) == "learners" else [room_of(path)])
        by_room[room] = by_room.get(room, 0) + len(constants(path))
    assert sum(by_room.values()) <= CONSTANTS, dict(sorted(by_room.items(), key=lambda item: -item[1]))


@pytest.mark.parametrize("path", [path for path in FILES if path.name == "settings.py"], ids=lambda path: path.parent.name)
def test_numbers_of_a_room_stand_in_one_place_with_their_reasons_and_the_benchmark(path):
    """A field that was measured names its benchmark through the class; the reason stands beside it."""
    (kind,) = [node for node in nodes(path)[0].body if isinstance(node, ast.ClassDef)][:1]
    words = ast.get_docstring(kind) or ""
    named = [part.strip("`.,") for part in words.split() if "benchmarks/" in part]
    assert named, f"{path} does not say what measured its numbers"
    assert all((SOURCE.parent.parent / name).is_file() for name in named), named
    lines = path.read_text().splitlines()
    fields = [node for node in kind.body if isinstance(node, ast.AnnAssign)]
    beside = {node: lines[node.lineno - 2 : node.lineno] for node in fields}
    bare = [
        ast.unparse(node) for node in fields if "#" not in "".join(beside[node]) and f"{ast.unparse(node.target)}:" not in words
    ]
    assert len(bare) <= UNREASONED * len(fields), bare


@pytest.mark.parametrize("room", ["recognition", "proof"])
def test_what_decides_is_tested_at_half_its_length(room):
    def length(folder):
        return sum(len(path.read_text().splitlines()) for path in folder.glob("*.py"))

    assert length(Path(__file__).parent / room) >= 0.5 * length(SOURCE / room)


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
