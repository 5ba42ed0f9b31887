"""Nuclear-norm minimisation with cvxpy over random rank-one measurements: the method of the theorem for low rank.

``v`` from d one-token questions, then Gaussian pairs ``[u + x; x]`` whose log-odds give ``u·W·x``; among all W that agree with them
the one of least nuclear norm. The log-odds are read in the form that keeps full precision, so the rival is not handicapped there.
"""

from __future__ import annotations

import numpy as np

import unsoftmax as us
from unsoftmax.oracles import Metered

SIZE = 1.0  # rms length of a coordinate of u and x, so that scores are of order one at every width
LARGEST = 32  # width up to which the interior-point solver fits into the time; beyond, the first-order one


def nuclear_norm(oracle: Metered, budget: int, seconds: float, rng: np.random.Generator) -> us.Attention:
    """Clarabel (interior point) up to width 32, SCS (first order) beyond."""
    import cvxpy

    d = oracle.width
    v = oracle(np.eye(d)[:, None])
    u, x = (SIZE * rng.normal(size=(budget - d, d)) / d**0.25 for _ in range(2))
    answers = oracle(np.stack([u + x, x], axis=1))
    scores = np.log((answers - x @ v) / ((u + x) @ v - answers))
    W = cvxpy.Variable((d, d))
    measured = cvxpy.reshape(W, (d * d,), order="C")
    products = (u[:, :, None] * x[:, None, :]).reshape(-1, d * d)
    size = np.linalg.norm(products, axis=1)
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.normNuc(W)), [(products / size[:, None]) @ measured == scores / size])
    if d <= LARGEST:
        problem.solve(solver=cvxpy.CLARABEL, time_limit=seconds)  # tolerances of 1e-13 gain less than a factor of two
    else:
        problem.solve(solver=cvxpy.SCS, time_limit_secs=seconds, eps=1e-9, max_iters=10**6)
    if W.value is None:
        raise ValueError(f"the solver ended with {problem.status}")
    return us.Attention.single(W.value, v)
