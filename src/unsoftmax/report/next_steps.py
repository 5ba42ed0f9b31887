"""What a reader can do next, from how a recovery ended."""

from __future__ import annotations

import shlex
from typing import Any

REFUSED = {
    "NOT_IN_FAMILY": (
        "`unsoftmax diagnose {target}` tells which test the target fails, with its number; it asks at most 200 + 4 width queries.",
        "If you know what stands behind it, name it with --family; a soft-cap, a norm or positions before the scores are outside.",
    ),
    "NOT_IDENTIFIABLE": (
        "The reason above says which parameters cannot be told apart; other or longer sequences may, more of the same do not.",
        "`unsoftmax identify WEIGHTS` shows for a model that you hold what its answers can and cannot tell.",
    ),
    "BUDGET_SPENT": (
        "`unsoftmax plan {target}` tells what the run needs before it is paid.",
        "Run the same command again with a larger --budget: with --out, its journal keeps what was paid for.",
    ),
    "TOO_NOISY": (
        "Allow more queries (--budget) or longer tokens (--max-norm), or ask for less (--accuracy, --digits).",
        "`unsoftmax plan {target} --accuracy A --noise S --max-norm R` tells what an accuracy costs.",
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
EXAMPLES = {
    "NOT_IN_FAMILY": ("Look at the examples: positions, norms or a mask that is not told with them put a layer outside.",),
    "NOT_IDENTIFIABLE": ("Record more examples, or such whose tokens point in more directions.",),
    "TOO_NOISY": ("Record more examples, or look for outliers among these.",),
}
RECOVERED = (
    "`unsoftmax verify {target} weights.safetensors` tells later whether the target still answers as these weights do.",
    "`unsoftmax audit {target}` measures which defence would have stopped this, and what it costs honest users.",
)


def next_steps(record: dict[str, Any]) -> list[str]:
    """Sentences with commands, the target's name filled in."""
    status, target = record["status"], record.get("target")
    recorded = bool(record.get("recorded"))
    if status in ("EXACT", "WITHIN_TOLERANCE"):
        if record.get("examples") is not None or recorded or target is None:
            return ["`unsoftmax identify weights.safetensors` tells what can and cannot be known about this model."]
        steps: tuple[str, ...] = RECOVERED
    elif record.get("examples") is not None:
        steps = EXAMPLES.get(status, EXAMPLES["NOT_IDENTIFIABLE"])
    else:
        steps = REFUSED[status]
    named = "TARGET" if target is None or recorded else shlex.quote(str(target))
    return [step.replace("{target}", named) for step in steps]
