"""FunctionallyEquivalentExtraction of the Adversarial Robustness Toolbox, on its home ground and away.

It is written for two dense layers with a ReLU between them and a vector of logits; it walks along a line in fixed steps to meet
every neuron. It is told the number of neurons. Away: an attention head on pairs of tokens, laid out as one long input.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import unsoftmax as us
from unsoftmax.errors import RefusalError

BUDGET = 200_000  # questions; it has no limit of its own and would search for ever


def network(width: int, neurons: int, outputs: int, seed: int) -> us.FFN:
    rng = np.random.default_rng([seed, width, neurons])
    first, second = rng.normal(size=(neurons, width)) / np.sqrt(width), rng.normal(size=(outputs, neurons)) / np.sqrt(neurons)
    return us.FFN([first, second], [rng.normal(size=neurons), rng.normal(size=outputs)])


def art(
    answer: Callable[[np.ndarray], np.ndarray], width: int, outputs: int, neurons: int, seed: int
) -> Callable[[np.ndarray], np.ndarray]:
    """The extracted function; raises what ART raises."""
    from art.attacks.extraction import FunctionallyEquivalentExtraction
    from art.estimators.classification import BlackBoxClassifierNeuralNetwork

    class Float64(BlackBoxClassifierNeuralNetwork):
        """ART's own wrapper rounds answers to float32, which would ruin its differences."""

        def predict(self, x: np.ndarray, batch_size: int = 128, **options: Any) -> np.ndarray:
            return answer(x)

    np.random.seed(seed)  # noqa: NPY002 - ART draws from the global generator
    target = Float64(answer, input_shape=(width,), nb_classes=outputs, channels_first=True, clip_values=(-np.inf, np.inf))
    attack = FunctionallyEquivalentExtraction(classifier=target, num_neurons=neurons)
    samples = np.random.default_rng(seed).normal(size=(20 * (neurons + 1), width))
    extracted = attack.extract(samples)
    return lambda x: extracted.predict(x)


class Endless(Exception):
    """The questions allowed are used up."""


class Counted:
    """A target that counts; it answers NaN to NaN, since ART asks that, and stops at the budget."""

    def __init__(self, function: Callable[[np.ndarray], np.ndarray]) -> None:
        self.function, self.asked = function, 0

    def __call__(self, x: np.ndarray) -> np.ndarray:
        self.asked += len(x)
        if self.asked > BUDGET:
            raise Endless("search without end")
        return self.function(np.asarray(x))


def run(name: str, target: str, truth: Callable[[np.ndarray], np.ndarray], width: int, seed: int, extract: Any) -> dict[str, Any]:
    """One extraction: error on fresh points over the spread of the answers, questions, CPU seconds."""
    points = 2 * np.random.default_rng([seed, 9]).normal(size=(1000, width))
    counted = Counted(truth)
    started, error, said = time.process_time(), None, ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ART divides by zero on its way
            error = float(np.abs(extract(counted)(points) - truth(points)).max() / truth(points).std())
    except (Endless, RefusalError, AssertionError, ValueError, ArithmeticError) as failure:
        said = str(failure).splitlines()[0]
    spent = time.process_time() - started
    return {"rival": name, "target": target, "seed": seed, "queries": counted.asked, "error": error, "seconds": spent, "said": said}


def compare(sizes: list[tuple[int, int, int]], seeds: range) -> list[dict[str, Any]]:
    """Both on the same networks, ART told the number of neurons; then ART on an attention head."""
    records = []
    for width, neurons, outputs in sizes:
        for seed in seeds:
            truth, name = network(width, neurons, outputs, seed), f"ReLU {width}-{neurons}-{outputs}"

            def ours(target: Counted, width: int = width, seed: int = seed) -> Any:
                return us.recover(lambda X: target(X[:, -1]), width=width, family="ffn", seed=seed).model

            def theirs(target: Counted, size: tuple[int, int, int] = (width, outputs, neurons), seed: int = seed) -> Any:
                return art(target, *size, seed)

            records += [run("unsoftmax", name, truth, width, seed, ours), run("ART", name, truth, width, seed, theirs)]
    for seed in seeds:
        rng = np.random.default_rng([seed, 4])
        head = us.Attention(rng.normal(size=(1, 4, 4)) / 2, rng.normal(size=(1, 4, 2)))

        def pairs(x: np.ndarray, head: us.Attention = head) -> np.ndarray:
            return head(x.reshape(-1, 2, 4))

        records.append(run("ART", "attention, 2 tokens", pairs, 8, seed, lambda target, seed=seed: art(target, 8, 2, 4, seed)))
    return records
