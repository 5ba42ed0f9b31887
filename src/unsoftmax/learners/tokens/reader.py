"""Questions of one and two tokens to a head, and what they say about its scores."""

from __future__ import annotations

import numpy as np

from unsoftmax.errors import NotIdentifiableError, NotInFamilyError
from unsoftmax.learners.tokens.hull import Hull, Indices, well_placed
from unsoftmax.learners.tokens.settings import KNOWN_TOKENS
from unsoftmax.models import Attention, Floats
from unsoftmax.oracles.base import Oracle
from unsoftmax.results import Floor


class TokenReader:
    """Asks sequences of one and two tokens."""

    def __init__(self, oracle: Oracle, hull: Hull, floor: Floor) -> None:
        self.oracle, self.hull, self.floor = oracle, hull, floor
        self.values = np.zeros((0, 1))  # answers to the spanning tokens
        self.worth = np.zeros((0, 1))  # predicted answers to all tokens
        self.scalar = True
        self.blur = np.ones(0)  # error of each token's worth, in units of the noise of an answer
        self.noise = 0.0
        self.balanced = 0.0  # error of a score near zero
        self.wobble = np.zeros(0)  # error of each direction of the known space, in scores
        self.memory: dict[int, dict[int, tuple[float, float]]] = {}  # last token -> key -> score and error

    def ask(self, ids: Indices) -> Floats:
        """Answers ``(batch, outputs)`` to token ids ``(batch, length)``."""
        answers = self.oracle(self.hull.embeddings[ids])
        self.scalar = answers.ndim == 1
        return np.asarray((answers[:, -1] if answers.ndim == 3 else answers).reshape(len(ids), -1))

    def read_values(self) -> None:
        """One-token answers at the spanning tokens, which determine those of all tokens."""
        self.values = self.ask(self.hull.tokens[:, None])
        slope, constant = self.hull.affine(self.values)
        self.worth = self.hull.coordinates @ slope + constant
        self.worth[self.hull.tokens] = self.values
        self.blur = self.hull.leverage()
        self.noise = self.floor.of(float(np.abs(self.worth).max()))
        contrast = np.linalg.norm(self.worth - self.worth.mean(axis=0), axis=1)
        self.balanced = 4 * self.noise / max(float(np.median(contrast)), float(contrast.max()) * 1e-3, 1e-300)
        if np.ptp(self.values, axis=0).max() <= 64 * self.noise:
            raise NotIdentifiableError(
                f"All {len(self.values)} one-token answers equal {self.values[0, 0]:.6g}: the values are the same for every token, "
                "so the attention weights never show and W cannot be identified."
            )

    def log_odds(self, keys: Indices, last: Indices) -> tuple[Floats, Floats]:
        """``(E_key - E_last)·(W E_last + c)`` and its estimated error, one query each."""
        answers = self.ask(np.column_stack([keys, last]))
        low, high = self.worth[last], self.worth[keys]
        span = high - low
        up = np.einsum("bo,bo->b", answers - low, span)
        down = np.einsum("bo,bo->b", high - answers, span)
        size = np.linalg.norm(span, axis=1)
        outside = np.minimum(up, down) < -KNOWN_TOKENS.safety * self.noise * self.blur[keys] * size
        if outside.any():
            pair = int(np.argmax(outside))
            raise NotInFamilyError(
                f"The answer to tokens {keys[pair]} and {last[pair]} does not lie between their one-token answers: the target is "
                "not one softmax head over these embeddings. Check the embedding table; `unsoftmax diagnose` names the family."
            )
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = np.log(up / down)
            error = self.noise * self.blur[keys] * size * (1 / up + 1 / down)
        lost = ~np.isfinite(scores) | ~(error > 0) | (error > 0.1)
        return np.where(lost, np.where(up > down, KNOWN_TOKENS.beyond, -KNOWN_TOKENS.beyond), scores), np.where(lost, np.inf, error)

    def read_scores(self) -> tuple[Floats, int, float]:
        """``basis.T (W E_j + c)`` at the spanning tokens, ``(tokens, dimension)``; their rank; the error of a score."""
        tokens, dimension = self.hull.tokens, self.hull.dimension
        space = np.zeros((dimension, 0))
        columns = np.zeros((len(tokens), dimension))
        worst, calm = 0.0, 0
        waiting = self._well_begun(list(range(len(tokens))))
        postponed: list[int] = []
        while waiting and calm < KNOWN_TOKENS.confident and space.shape[1] < dimension:
            index = waiting.pop(0)
            outcome = self._column(int(tokens[index]), space, forced=not waiting or len(postponed) > len(tokens))
            if outcome is None:  # too many of its scores saturate: better tokens first
                waiting.append(index)
                postponed.append(index)
                continue
            columns[index], error, fits = outcome
            worst = max(worst, error)
            calm = calm + 1 if fits else 0
            if not fits:
                fresh = columns[index] - space @ (space.T @ columns[index])
                fresh -= space @ (space.T @ fresh)  # twice is enough
                space = np.column_stack([space, fresh / np.linalg.norm(fresh)])
                self.wobble = np.append(self.wobble, error / np.linalg.norm(fresh))
        if waiting:
            columns[waiting], error = self._columns_within(tokens[waiting], space)
            worst = max(worst, error)
        return columns, space.shape[1], worst

    def _well_begun(self, order: list[int]) -> list[int]:
        """Move a token to the front whose scores are of middling size: all others lean on the accuracy of the first column."""
        if len(order) < 2 * KNOWN_TOKENS.tastes:
            return order
        sizes = []
        for index in order[: KNOWN_TOKENS.tastes]:
            last = int(self.hull.tokens[index])
            self._ask_about(last, self.hull.tokens[-KNOWN_TOKENS.tastes :])
            _, scores, errors = self._known(last)
            size = float(np.sqrt(np.mean(np.where(np.isfinite(errors), scores, 10.0) ** 2)))
            sizes.append(size if size < KNOWN_TOKENS.best_size else KNOWN_TOKENS.best_size**2 / size)
        first = int(np.argmax(sizes))
        return [order[first], *order[:first], *order[first + 1 :]]

    def _candidates(self, last: int) -> tuple[Floats, Floats]:
        """Directions of all keys seen from ``last``, and how well their value stands out of the noise, at most 1."""
        directions = self.hull.coordinates - self.hull.coordinates[last]
        contrast = np.linalg.norm(self.worth - self.worth[last], axis=1) / self.blur
        return directions, np.minimum(contrast / np.median(contrast[contrast > 0]), 1.0)

    def _ask_about(self, last: int, keys: Indices) -> None:
        """Ask for the scores of keys before ``last`` that are not known yet."""
        known = self.memory.setdefault(last, {})
        new = np.array([key for key in keys if int(key) not in known], dtype=np.intp)
        if len(new):
            scores, errors = self.log_odds(new, np.full(len(new), last))
            known.update(zip(map(int, new), zip(map(float, scores), map(float, errors), strict=True), strict=True))

    def _known(self, last: int) -> tuple[Indices, Floats, Floats]:
        """Keys before ``last`` that were asked, their scores, and the errors of those."""
        known = self.memory.get(last, {})
        scores = np.array(list(known.values())).reshape(-1, 2)
        return np.array(list(known), dtype=np.intp), scores[:, 0], scores[:, 1]

    def _column(self, last: int, space: Floats, *, forced: bool) -> tuple[Floats, float, bool] | None:
        """One column, its error, and whether it lies in the known space; None if it saturates and may wait.

        A column in the known space takes rank + 1 keys, another one as many as the dimension.
        """
        dimension, rank = space.shape
        directions, weights = self._candidates(last)
        near = self.hull.tokens[self.hull.tokens != last]  # keys whose own answers were asked; just enough for a column
        for _ in range(KNOWN_TOKENS.retries):
            keys, _, errors = self._known(last)
            weights[keys[errors > KNOWN_TOKENS.spare * self.balanced]] = 0.0
            inside = directions[near] @ space
            first = well_placed(inside, weights[near], rank)
            # the check key is the one that looks farthest out of the known space
            outward = np.linalg.norm(directions[near] - inside @ space.T, axis=1) * weights[near]
            outward[first] = -1.0
            self._ask_about(last, near[np.append(first, np.argmax(outward))])
            keys, scores, errors = self._known(last)
            good = errors <= KNOWN_TOKENS.spare * self.balanced
            if good.sum() > rank:
                column, error, fits = _fit(directions[keys[good]], scores[good], errors[good], space, self.wobble)
                if fits:
                    return column, error, True
                break
        self._ask_about(last, near[: KNOWN_TOKENS.sample])
        if not forced and np.mean(self._known(last)[2] > KNOWN_TOKENS.spare * self.balanced) > KNOWN_TOKENS.crowded:
            return None
        self._ask_about(last, near)
        column, error = self._completed(last, np.eye(dimension))
        return column, error, False

    def _completed(self, last: int, space: Floats) -> tuple[Floats, float]:
        """Fit a column within ``space`` to all scores known, with more keys in place of saturated ones."""
        directions, free = self._candidates(last)
        directions = directions @ space
        for _ in range(KNOWN_TOKENS.replacements):
            keys, scores, errors = self._known(last)
            free[keys] = 0.0
            good = errors <= KNOWN_TOKENS.spare * self.balanced
            count = min(space.shape[1] - int(good.sum()), int((free > 0).sum()))
            if count <= 0:
                weakest, size = _weakest(directions[keys[good]], errors[good])
                if size <= KNOWN_TOKENS.spare * self.balanced * np.sqrt(space.shape[1]) or not (free > 0).any():
                    break
                self._ask_about(last, np.array([np.argmax(np.abs(directions @ weakest) * free)]))
                continue
            spanned = np.linalg.qr(directions[keys[good]].T)[0]
            calm = free * self._unsaturated(last, directions)
            self._ask_about(last, well_placed(directions - directions @ spanned @ spanned.T, calm, count))
        if (self._known(last)[2] <= KNOWN_TOKENS.spare * self.balanced).sum() < space.shape[1]:
            self._with_companions(last)
        keys, scores, errors = self._known(last)
        errors = np.where(
            scores == -KNOWN_TOKENS.beyond, KNOWN_TOKENS.beyond, errors
        )  # such a key never weighs anything: any score so low will do
        usable = np.isfinite(errors)
        if usable.sum() < space.shape[1]:
            raise NotIdentifiableError(
                f"Only {int(usable.sum())} of {space.shape[1]} scores at token {last} can be read: the others saturate (their "
                "weight is 0 or 1 to the last digit), and no other token helps. The vocabulary leaves no way to scale them down."
            )
        whole = np.eye(space.shape[1])
        column, error, _ = _fit(directions[keys[usable]], scores[usable], errors[usable], whole, np.zeros(len(whole)))
        return space @ column, error

    def _with_companions(self, last: int) -> None:
        """Read keys that outweigh ``last`` beside another such key: their ratio does not saturate. One query a key and round.

        With a companion k of known score, ``exp(z_i - z_k) = ((y - y_k) + exp(-z_k) (y - y_last)) / (y_i - y)``.
        """
        for _ in range(KNOWN_TOKENS.rounds):
            keys, scores, errors = self._known(last)
            helpers = np.flatnonzero((errors <= KNOWN_TOKENS.spare * self.balanced) & (scores > 2.0))
            rows = np.flatnonzero((errors > KNOWN_TOKENS.spare * self.balanced) & (scores > 0))
            if not len(helpers) or not len(rows):
                return
            contrast = np.linalg.norm(self.worth[keys[rows], None] - self.worth[keys[helpers]], axis=2)
            chosen = helpers[np.argmax(scores[helpers] + np.log(contrast / contrast.max() + 1e-9), axis=1)]
            answers = self.ask(np.column_stack([keys[rows], keys[chosen], np.full(len(rows), last)]))
            span = self.worth[keys[rows]] - self.worth[keys[chosen]]
            rest = np.exp(-scores[chosen])[:, None] * (answers - self.worth[last])
            up = np.einsum("bo,bo->b", answers - self.worth[keys[chosen]] + rest, span)
            down = np.einsum("bo,bo->b", self.worth[keys[rows]] - answers, span)
            with np.errstate(divide="ignore", invalid="ignore"):
                found = scores[chosen] + np.log(up / down)
                blur = self.noise * np.maximum(self.blur[keys[rows]], self.blur[keys[chosen]])
                error = errors[chosen] + blur * np.linalg.norm(span, axis=1) * (1 / up + 1 / down)
            better = np.isfinite(found) & (error > 0) & (error < np.minimum(errors[rows], 0.1))
            for row, score, uncertainty in zip(rows[better], found[better], error[better], strict=True):
                self.memory[last][int(keys[row])] = (float(score), float(uncertainty))
            if not better.any():
                return

    def _unsaturated(self, last: int, directions: Floats) -> Floats:
        """How much each key is to be preferred, judging by the scores known so far, if its score must not saturate."""
        keys, scores, errors = self._known(last)
        rough = np.isfinite(errors)
        lengths = np.linalg.norm(directions, axis=1)
        if rough.sum() < directions.shape[1]:
            return np.asarray(1 / (lengths + 0.1 * lengths.mean()))
        rows = directions[keys[rough]] / errors[rough, None]
        expected = np.abs(directions @ np.linalg.lstsq(rows, scores[rough] / errors[rough], rcond=None)[0])
        return np.asarray(lengths / lengths.mean() * np.exp(-np.clip(expected - 3.0, 0.0, 50.0)))

    def _columns_within(self, lasts: Indices, space: Floats) -> tuple[Floats, float]:
        """Columns known to lie in ``space``, from as many keys each as it has dimensions, all asked at once."""
        rank = space.shape[1]
        if rank == 0:
            return np.zeros((len(lasts), len(space))), 0.0
        picks = []
        for last in map(int, lasts):
            directions, weights = self._candidates(last)
            near = self.hull.tokens[self.hull.tokens != last]
            picks.append(near[well_placed(directions[near] @ space, weights[near], rank)])
        fresh = [(int(last), pick) for last, pick in zip(lasts, picks, strict=True) if int(last) not in self.memory]
        if fresh:
            scores, errors = self.log_odds(
                np.concatenate([pick for _, pick in fresh]), np.repeat([last for last, _ in fresh], rank)
            )
            for row, (last, pick) in enumerate(fresh):
                part = slice(row * rank, (row + 1) * rank)
                self.memory[last] = dict(
                    zip(map(int, pick), zip(scores[part].tolist(), errors[part].tolist(), strict=True), strict=True)
                )
        results = [self._completed(int(last), space) for last in lasts]
        return np.array([column for column, _ in results]), max(error for _, error in results)

    def check(self, model: Attention, rng: np.random.Generator) -> float:
        """A few fresh sequences of several tokens against the model; the largest error, relative to the spread of the values."""
        ids = rng.integers(len(self.hull.embeddings), size=(KNOWN_TOKENS.checks, 3))
        answers = self.ask(ids)
        wanted = model(self.hull.embeddings[ids]).reshape(len(ids), -1)
        worst = float(np.abs(answers - wanted).max() / np.ptp(self.worth, axis=0).max())
        if worst > max(1e-6, 1e4 * self.floor.relative):
            raise NotInFamilyError(
                f"Fresh token sequences differ from the head found by {worst:.2g} of the spread of the values: the target is not "
                "one softmax head over these embeddings. Check the embedding table; `unsoftmax diagnose` names the family.",
                evidence={"check_error": worst},
                model=model,
            )
        return worst


def _weakest(directions: Floats, errors: Floats) -> tuple[Floats, float]:
    """The direction along which these scores say least about a column, and the error of a typical score along it."""
    _, sizes, rows = np.linalg.svd(directions / errors[:, None])
    if len(sizes) < directions.shape[1] or sizes[-1] <= 0:
        return rows[-1], np.inf
    return rows[-1], float(np.sqrt(np.mean((directions @ rows[-1]) ** 2) + np.mean(directions**2)) / sizes[-1])


def _fit(directions: Floats, scores: Floats, errors: Floats, space: Floats, wobble: Floats) -> tuple[Floats, float, bool]:
    """Weighted fit of ``column = space @ a`` to ``directions @ column = scores``, all errors finite.

    Returns the column, the error of the scores that it predicts, and whether a score too many agrees, within the errors of the
    scores and those of the space, ``wobble``.
    """
    design = directions @ space
    weighted = design / errors[:, None]
    coefficients = np.linalg.lstsq(weighted, scores / errors, rcond=None)[0]
    misfit = np.abs(scores - design @ coefficients)
    allowed = KNOWN_TOKENS.safety * (errors + float(np.abs(coefficients) @ wobble))
    agrees = len(scores) > space.shape[1] and bool((misfit <= allowed).all())
    lengths = np.sqrt(np.mean(design**2, axis=0))
    error = float(np.linalg.norm(np.linalg.pinv(weighted) * lengths[:, None])) if space.shape[1] else float(errors.min())
    return space @ coefficients, error, agrees
