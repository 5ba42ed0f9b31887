"""A student of the same family, fitted to the answers on random pairs of tokens by three optimisers.

All three see the same kind of data: ``[p; x]`` with Gaussian tokens, answered by ``x·v + sigma((p - x)·W·x) (p - x)·v``. The whole
budget is asked at once, then the student is fitted until it explains the answers to rounding or the time is over; an optimiser that
stops early starts again from another random point, and the start that explains the answers best is kept. The size of the tokens
and the step sizes were tuned by hand on width 16, seeds 0 to 3, which no table uses.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize
from scipy.special import expit

import unsoftmax as us
from unsoftmax.oracles import Metered

EXPLAINED = 1e-29  # squared residual over squared answers: the rounding of float64
DAMPINGS = 12  # times that a step is shortened before the search gives up
PATIENCE = 25  # Levenberg-Marquardt steps without a tenth off the residual before another start


@dataclass(frozen=True, eq=False)
class Pairs:
    """Random pairs with their answers: ``x (n, d)``, ``u = p - x``, ``y (n,)``."""

    x: np.ndarray
    u: np.ndarray
    y: np.ndarray

    @classmethod
    def asked(cls, oracle: Metered, budget: int, size: float, rng: np.random.Generator) -> Pairs:
        tokens = size * rng.normal(size=(budget, 2, oracle.width))
        answers = np.concatenate([oracle(part) for part in np.array_split(tokens, -(-budget // 4096))])
        return cls(tokens[:, 1], tokens[:, 0] - tokens[:, 1], answers)

    def start(self, rng: np.random.Generator) -> np.ndarray:
        """A random student: small scores, values of the right size."""
        d = self.x.shape[1]
        return np.concatenate([0.1 * rng.normal(size=d * d) / np.sqrt(d), rng.normal(size=d)])

    def residual(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What is left of the answers, the weights of the first tokens, and their values."""
        d = self.x.shape[1]
        W, v = theta[:-d].reshape(d, d), theta[-d:]
        share = expit(np.einsum("nd,nd->n", self.u, self.x @ W.T))
        worth = self.u @ v
        return self.x @ v + share * worth - self.y, share, worth

    def normal_equations(self, left: np.ndarray, share: np.ndarray, worth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``J^T J`` and ``J^T residual``, summed over blocks of rows that fit into memory."""
        n, d = self.x.shape
        normal, slope = np.zeros((d * d + d, d * d + d)), np.zeros(d * d + d)
        for at in range(0, n, 2048):
            here = slice(at, at + 2048)
            pull = (share * (1 - share) * worth)[here, None, None]
            scores = (pull * self.u[here, :, None] * self.x[here, None, :]).reshape(-1, d * d)
            rows = np.hstack([scores, self.x[here] + share[here, None] * self.u[here]])
            normal += rows.T @ rows
            slope += rows.T @ left[here]
        return normal, slope


def best_of_starts(pairs: Pairs, fit: Callable[[np.ndarray, float], tuple[np.ndarray, float]], seconds: float, rng) -> us.Attention:
    """Fit from random starts until one explains the answers or the time is over."""
    end = time.process_time() + seconds
    best, least = pairs.start(rng), np.inf
    while time.process_time() < end and least > EXPLAINED:
        theta, loss = fit(pairs.start(rng), end)
        if loss < least:
            best, least = theta, loss
    d = pairs.x.shape[1]
    return us.Attention.single(best[:-d].reshape(d, d), best[-d:])


def levenberg_marquardt(oracle: Metered, budget: int, seconds: float, rng: np.random.Generator) -> us.Attention:
    """Normal equations by Cholesky, damping scaled by their diagonal: several times faster here than SciPy's MINPACK."""
    pairs = Pairs.asked(oracle, budget, 0.5, rng)
    whole = float(pairs.y @ pairs.y)

    def fit(theta: np.ndarray, end: float) -> tuple[np.ndarray, float]:
        left, share, worth = pairs.residual(theta)
        losses, damping = [float(left @ left)], 1.0
        while time.process_time() < end and losses[-1] > EXPLAINED * whole:
            normal, slope = pairs.normal_equations(left, share, worth)
            scale = np.diag(normal).copy()
            for _ in range(DAMPINGS):
                try:
                    new = theta - cho_solve(cho_factor(normal + np.diag(damping * scale), overwrite_a=True), slope)
                except np.linalg.LinAlgError:
                    damping *= 4
                    continue
                left, share, worth = pairs.residual(new)
                if left @ left < losses[-1]:
                    break
                damping *= 4
            else:
                break
            theta, damping = new, damping / 5
            losses.append(float(left @ left))
            if len(losses) > PATIENCE and losses[-1] > 0.9 * losses[-PATIENCE]:
                break
        return theta, losses[-1] / whole

    return best_of_starts(pairs, fit, seconds, rng)


def lbfgs(oracle: Metered, budget: int, seconds: float, rng: np.random.Generator) -> us.Attention:
    """SciPy's L-BFGS-B with a long memory and no early stop."""
    pairs = Pairs.asked(oracle, budget, 0.3, rng)
    whole = float(pairs.y @ pairs.y)

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        left, share, worth = pairs.residual(theta)
        pull = left * share * (1 - share) * worth
        gradient = np.concatenate([((pairs.u * pull[:, None]).T @ pairs.x).ravel(), left @ (pairs.x + share[:, None] * pairs.u)])
        return float(left @ left) / whole, 2 * gradient / whole

    def fit(theta: np.ndarray, end: float) -> tuple[np.ndarray, float]:
        def stop(at: np.ndarray) -> None:
            if time.process_time() > end:
                raise StopIteration

        options = {"maxcor": 50, "maxiter": 10**6, "maxfun": 10**7, "ftol": 0.0, "gtol": 0.0}
        found = minimize(loss, theta, jac=True, method="L-BFGS-B", callback=stop, options=options)
        return found.x, float(found.fun)

    return best_of_starts(pairs, fit, seconds, rng)


def adam(oracle: Metered, budget: int, seconds: float, rng: np.random.Generator) -> us.Attention:
    """PyTorch's Adam in float64, batches of 512, the step size falling along a cosine over the time allowed."""
    import torch

    pairs = Pairs.asked(oracle, budget, 0.4, rng)
    d = oracle.width
    x, u, y = (torch.from_numpy(a) for a in (pairs.x, pairs.u, pairs.y))
    theta = pairs.start(rng)
    W = torch.tensor(theta[:-d].reshape(d, d), requires_grad=True)
    v = torch.tensor(theta[-d:], requires_grad=True)
    optimiser = torch.optim.Adam([W, v], lr=LEARNING_RATE)
    shuffle = torch.Generator().manual_seed(int(rng.integers(2**31)))
    size = min(512, len(y))
    started = time.process_time()
    while (elapsed := (time.process_time() - started) / seconds) < 1:
        for group in optimiser.param_groups:
            group["lr"] = LEARNING_RATE * 0.5 * (1 + np.cos(np.pi * elapsed))
        for some in torch.randperm(len(y), generator=shuffle).split(size):
            optimiser.zero_grad()
            share = torch.sigmoid((u[some] * (x[some] @ W.T)).sum(dim=1))
            loss = ((x[some] @ v + share * (u[some] @ v) - y[some]) ** 2).mean()
            loss.backward()
            optimiser.step()
    return us.Attention.single(W.detach().numpy(), v.detach().numpy())


LEARNING_RATE = 1e-2
