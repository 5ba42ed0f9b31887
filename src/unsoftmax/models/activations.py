"""The bends that a network may have: values, slopes, and what they tend to far out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from unsoftmax.models.base import Floats

SMOOTH = ("gelu", "gelu_tanh", "silu", "softplus", "mish", "elu")  # corners from afar, and none near by
NAMES = ("relu", *SMOOTH, "relu2")  # the last: relu(z)^2
BOUNDED = ("tanh",)  # levels off on both sides; a sigmoid is a tanh with other weights and constants


@dataclass(frozen=True, slots=True, eq=False)
class Activation:
    """A function of one number that is ``z + high`` far up (but for the bounded ones) and ``low`` far down.

    Attributes:
        name: as in ``FFN(activation=…)``.
        value: numbers to numbers.
        slope: the derivative.
        torch: the same function, from the module ``torch``.
        even: ``value(z) - value(-z) = z``, so that a neuron turned round differs by a linear part only.
        low: limit far down.
        high: limit of ``value(z) - z`` far up.
        degree: ``value(s z) = s^degree value(z)`` for positive ``s``, so that the scale of a neuron does not show; 0 where it does.
    """

    name: str
    value: Callable[[Floats], Floats]
    slope: Callable[[Floats], Floats]
    torch: Callable[[Any], Callable[[Any], Any]]
    even: bool
    low: float = 0.0
    high: float = 0.0
    degree: int = 0


def activation_named(name: str) -> Activation:
    """The activation of that name.

    Raises:
        ValueError: there is none.

    >>> activation_named("softplus").value(np.zeros(1))
    array([0.69314718])
    """
    if name not in (*NAMES, *BOUNDED):
        raise ValueError(f"activation is {name!r}; it must be one of {', '.join((*NAMES, *BOUNDED))}.")
    return RELU if name == "relu" else _table()[name]


RELU = Activation(
    "relu", lambda z: np.maximum(z, 0.0), lambda z: np.asarray(z > 0, dtype=np.float64), lambda torch: torch.relu, True, degree=1
)


@cache
def _table() -> dict[str, Activation]:
    from scipy.special import expit, ndtr  # here: a command that only prints its help should not load SciPy

    cube, root = 0.044715, np.sqrt(2 / np.pi)  # of the tanh form of GELU

    def density(z: Floats) -> Floats:
        return np.asarray(np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi))

    def inner(z: Floats) -> Floats:
        return np.asarray(2 * root * z * (1 + cube * z * z))

    def gelu_tanh_slope(z: Floats) -> Floats:
        gate = expit(inner(z))
        return np.asarray(gate + z * gate * expit(-inner(z)) * 2 * root * (1 + 3 * cube * z * z))

    def silu_slope(z: Floats) -> Floats:
        gate = expit(z)
        return np.asarray(gate * (1 + z * expit(-z)))

    def softplus(z: Floats) -> Floats:
        return np.logaddexp(0.0, z)

    def mish_slope(z: Floats) -> Floats:
        gate = np.tanh(softplus(z))
        return np.asarray(gate + z * (1 - gate * gate) * expit(z))

    def in_torch(name: str, **settings: Any) -> Callable[[Any], Callable[[Any], Any]]:
        return lambda torch: partial(getattr(torch.nn.functional, name), **settings)

    gelu_in_torch, tanh_gelu_in_torch = in_torch("gelu"), in_torch("gelu", approximate="tanh")
    softplus_in_torch = in_torch("softplus", threshold=64.0)  # beyond 20, the default, it would answer in few digits
    rows = (
        Activation("gelu", lambda z: np.asarray(z * ndtr(z)), lambda z: np.asarray(ndtr(z) + z * density(z)), gelu_in_torch, True),
        Activation("gelu_tanh", lambda z: np.asarray(z * expit(inner(z))), gelu_tanh_slope, tanh_gelu_in_torch, True),
        Activation("silu", lambda z: np.asarray(z * expit(z)), silu_slope, in_torch("silu"), True),
        Activation("softplus", softplus, lambda z: np.asarray(expit(z)), softplus_in_torch, True),
        Activation("mish", lambda z: np.asarray(z * np.tanh(softplus(z))), mish_slope, in_torch("mish"), False),
        Activation(
            "elu",
            lambda z: np.where(z > 0, z, np.expm1(np.minimum(z, 0.0))),
            lambda z: np.exp(np.minimum(z, 0.0)),
            in_torch("elu"),
            False,
            low=-1.0,
        ),
        Activation(
            "relu2",
            lambda z: np.maximum(z, 0.0) ** 2,
            lambda z: 2 * np.maximum(z, 0.0),
            lambda torch: lambda z: torch.relu(z) ** 2,
            False,
            degree=2,
        ),
        Activation("tanh", np.tanh, lambda z: 1 - np.tanh(z) ** 2, lambda torch: torch.tanh, False, low=-1.0),
    )
    return {row.name: row for row in rows}
