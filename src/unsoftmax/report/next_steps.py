"""What a reader can do next, from how a run ended."""

from __future__ import annotations

import shlex
from typing import Any

from unsoftmax.report.common import succeeded


def next_steps(record: dict[str, Any]) -> list[str]:
    """Sentences with commands after a recovery, the target's name filled in."""
    recorded = bool(record.get("recorded"))
    if record.get("examples") is not None or recorded or record.get("target") is None:
        if succeeded(record["status"]):
            return ["`unsoftmax identify weights.safetensors` tells what can and cannot be known about this model."]
        if record.get("examples") is not None:
            return [_from_examples(record["status"])]
    name = "TARGET" if recorded else _named(record)
    if succeeded(record["status"]):
        return [
            f"`unsoftmax verify {name} weights.safetensors` tells later whether the target still answers as these weights do.",
            f"`unsoftmax audit {name}` measures which defence would have stopped this, and what it costs honest users.",
        ]
    return _refused(record["status"], name)


def after_diagnosis(record: dict[str, Any]) -> list[str]:
    """Sentences with commands after a diagnosis."""
    name = _named(record)
    if record["inside"]:
        return [f"`unsoftmax recover {name} --out FOLDER` recovers it; `unsoftmax plan {name}` tells the bill by phase."]
    return [
        "A test that failed names what stands in the way; one that could not decide may do so with other questions (--seed), "
        "longer tokens (--max-norm) or more precise answers.",
        f"If you know what it is, `unsoftmax recover {name} --family NAME` tries that family all the same, and still checks it.",
    ]


def after_verification(record: dict[str, Any]) -> list[str]:
    """Sentences with commands after a verification."""
    name = _named(record)
    if record["matches"]:
        return [f"`unsoftmax watch {name} CHECKPOINT --every 1h` repeats such a check for a folder or a torch module."]
    return [
        f"`unsoftmax recover {name} --out FOLDER` recovers what it runs now, where its family allows it; "
        f"`unsoftmax diagnose {name}` tells the family.",
        "Check that both sides are the same version, layer and number format, and that no defence changes the answers.",
    ]


def after_deployment(record: dict[str, Any]) -> list[str]:
    """Sentences with commands after a deployment was held against a checkpoint."""
    name, weights = _named(record), shlex.quote(str(record["weights"]))
    again = f"`unsoftmax verify {name} {weights}`"
    if record["matches"]:
        return [f"`unsoftmax watch {name} {weights} --every 1h` repeats this check, with fresh questions each time."]
    if record["replicas"]:
        return [
            "Ask each replica by its own address, to find the one that differs; push the checkpoint to it again.",
            f"{again} then tells whether they agree.",
        ]
    change = record["change"]
    place = ", ".join(change["where"]) if change else "its weights"
    return [
        f"Compare the files behind the endpoint with the checkpoint's ({place}): their checksums, and what the server does "
        "with them on loading (quantisation, adapters, number format).",
        f"Push the checkpoint again; {again} then tells whether it answers as these weights do.",
    ]


def _named(record: dict[str, Any]) -> str:
    return "TARGET" if record.get("target") is None else shlex.quote(str(record["target"]))


def _from_examples(status: str) -> str:
    if status == "NOT_IN_FAMILY":
        return "Look at the examples: positions, norms or a mask that is not told with them put a layer outside."
    if status == "TOO_NOISY":
        return "Record more examples, or look for outliers among these."
    return "Record more examples, or such whose tokens point in more directions."


def _refused(status: str, name: str) -> list[str]:
    steps = {
        "NOT_IN_FAMILY": (
            f"`unsoftmax diagnose {name}` tells which test the target fails, with its number, for at most 200 + 4 width queries.",
            "If you know what it is, name it with --family; soft-caps, norms or positions before the scores are outside.",
        ),
        "INCONCLUSIVE": (
            "Other questions (another --seed), longer tokens (--max-norm) or more precise answers may decide.",
            f"If you know what it is, `unsoftmax recover {name} --family NAME` tries that family, and checks it.",
        ),
        "NOT_IDENTIFIABLE": (
            "The reason above says which parameters cannot be told apart; other or longer sequences may, more of the same do not.",
            "`unsoftmax identify WEIGHTS` shows for a model that you hold what its answers can and cannot tell.",
        ),
        "BUDGET_SPENT": (
            f"`unsoftmax plan {name}` tells what the run needs before it is paid.",
            "Run the same command again with a larger --budget: with --out, its journal keeps what was paid for.",
        ),
        "TOO_NOISY": (
            "Allow more queries (--budget) or longer tokens (--max-norm), or ask for less (--accuracy, --digits).",
            f"`unsoftmax plan {name} --accuracy A --noise S --max-norm R` tells what an accuracy costs.",
        ),
        "DRIFTING": (
            "Pin one version of the target, and one replica, then run again in a fresh folder.",
            "`unsoftmax verify TARGET WEIGHTS` tells whether it runs the weights that you expect.",
        ),
        "TARGET_FAILED": (
            "Mend the cause named above, then run the same command: with --out nothing that was answered is asked again.",
            "`unsoftmax serve demo` hosts a target that works, to tell a fault of the network from one of the target.",
        ),
    }
    return list(steps[status])
