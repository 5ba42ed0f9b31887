"""Which numbers a target answers with: decimals, significant digits, or a short binary format."""

from __future__ import annotations

import numpy as np

from unsoftmax.models import Floats
from unsoftmax.results import Floor

MANTISSA = {"bfloat16": 8, "float16": 11, "float32": 24}
MOST_DECIMALS, MOST_DIGITS, MOST_DIGITS_FLOAT32 = 11, 12, 6
SHARE_FULL = 0.6  # answers that must use all decimals, or else the answers merely happen to be short
FEWEST_FORMS = 10  # different numbers other than 0 that it takes to see a pattern of decimals
MANY = 512  # numbers that show a format


def format_floor(answers: Floats) -> Floor:
    """The precision that the digits of many answers speak of: rounded, digits, a binary format, or exact."""
    values = np.unique(answers[answers != 0].ravel()[:MANY])
    if not values.size:
        return Floor()
    single = bool((values == to_bits(values, MANTISSA["float32"])).all())
    digits, last = np.array([decimal_form(value, single) for value in values]).T
    decimals = np.maximum(0, -last)
    k, n = int(decimals.max()), int(digits.max())
    several = len(values) >= FEWEST_FORMS
    if several and k <= MOST_DECIMALS and np.mean(decimals == k) > SHARE_FULL:
        return Floor("rounded", absolute=0.5 * 10.0**-k, step=10.0**-k)
    if several and n <= (MOST_DIGITS_FLOAT32 if single else MOST_DIGITS) and np.mean(digits == n) > SHARE_FULL:
        return Floor("digits", relative=0.5 * 10.0 ** (1 - n))
    for name, bits in MANTISSA.items():
        if (values == to_bits(values, bits)).all():
            return Floor(name, relative=2.0**-bits)
    return Floor()


def decimal_form(value: float, single: bool) -> tuple[int, int]:
    """Number of significant digits of the shortest decimal form, and the power of ten of the last one."""
    text = np.format_float_scientific(np.float32(value) if single else np.float64(value), unique=True, trim="-")
    mantissa, exponent = text.split("e")
    digits = mantissa.lstrip("-").replace(".", "")
    return len(digits), int(exponent) - (len(digits) - 1)


def to_bits(values: Floats, bits: int) -> Floats:
    """Numbers with ``bits`` significant bits; half precision's limited range is left aside."""
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits), dtype=np.float64)
