"""What a decoder without biases may have that rotary heads cannot explain, each found by its own few questions."""

from __future__ import annotations

import numpy as np

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.decoder.limit import Limit
from unsoftmax.learners.decoder.start import on_sphere
from unsoftmax.models import Floats


def demand_plain(limit: Limit, rng: np.random.Generator) -> float:
    """Refuse, by name, attention that is no softmax of bilinear scores with weights that sum to one. About 100 questions.

    Returns:
        How far from those of no scores at all the answers are that zero tokens in front change: a third of the scores' size.

    Raises:
        NotInFamilyError: with what the decoder has.
    """
    x = on_sphere(rng.normal(size=(4, limit.width)), limit.radius)
    alone = limit.ask(x[:, None], 0)
    size = float(np.sqrt(np.mean(alone**2)))
    small = limit.settings.clear * limit.noise
    many = limit.zeros

    twice = limit.ask(np.stack([x, x], axis=1), 0) - alone
    _demand(
        _rms(twice) <= small,
        f"A token and the same one twice are answered differently ({_rms(twice) / size:.1e} of the answers): weights do not sum to "
        "one. The decoder has attention sinks, or attention without softmax (linear attention) in a layer.",
        _rms(twice),
    )
    few, half, most = (limit.ask(x[:, None], k) for k in (2, many // 2, many))
    _demand(
        _rms(half - most) > small or _rms(few - half) <= small,
        f"{many // 2} and {many} zero tokens in front are answered alike: the decoder attends to a window of fewer tokens "
        "(sliding window). A longer window is needed.",
        _rms(half - most),
    )
    mirrored = limit.ask(-x[:, None], 2) - limit.ask(-x[:, None], 0) + few - alone
    _demand(
        _rms(mirrored) <= small,
        f"What zero tokens change in the answer to a token and to its opposite does not cancel ({_rms(mirrored) / size:.1e}): "
        "queries or keys have biases (as in Qwen2).",
        _rms(mirrored),
    )
    p, x = on_sphere(rng.normal(size=(2, 8, limit.width)), limit.radius)
    pairs = np.stack([p, x], axis=1)
    near, far = (_each(limit.ask(pairs, k, rough=True) - limit.ask(x[:, None], k, rough=True)) for k in (many // 4, many))
    faded = float(np.sort(near / np.maximum(far, 1e-300))[-3])  # four where scores are mild, less where some are strong
    _demand(
        faded > limit.settings.fades,
        f"What a key changes does not fade behind zero tokens (by {faded:.2f} behind four times as many): a norm stands behind "
        "the attention (sandwich norms, as in Gemma 2).",
        faded,
    )
    alike = 2 / 3 * (many + 1) / many  # shares of attention that two and that many zero tokens take where scores are zero
    return _rms(few - alone - alike * (most - alone)) / max(_rms(few - alone), 1e-300)


def _rms(values: Floats) -> float:
    return float(np.sqrt(np.mean(values**2)))


def _each(values: Floats) -> Floats:
    return np.asarray(np.linalg.norm(values, axis=1))


def _demand(holds: bool, words: str, number: float) -> None:
    if not holds:
        raise NotInFamilyError(words, evidence={"recognised": number})
