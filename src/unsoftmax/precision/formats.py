"""Which numbers a target answers with: decimals, significant digits, or a short binary format."""

from __future__ import annotations

import numpy as np

from unsoftmax.models import Floats
from unsoftmax.precision.settings import READING
from unsoftmax.results import Floor

MANTISSA = {"bfloat16": 8, "float16": 11, "float32": 24}


def formats(answers: Floats) -> list[Floor]:
    """The precisions that the digits of many answers speak of, the finest first: rounded, digits, a binary format; or none."""
    values = np.unique(answers[answers != 0].ravel()[: READING.many])
    if not values.size:
        return []
    fitting = [name for name, bits in MANTISSA.items() if (values == to_bits(values, bits)).all()]
    single = bool(fitting)  # the coarser formats are part of float32
    digits, last = np.array([decimal_form(value, single) for value in values]).T
    k, n = max(0, -int(last.min())), int(digits.max())
    found: list[Floor] = []
    if n <= (READING.most_digits_float32 if single else READING.most_digits):
        if k <= READING.most_decimals:
            found.append(Floor("rounded", absolute=0.5 * 10.0**-k, step=10.0**-k))
        found.append(Floor("digits", relative=0.5 * 10.0 ** (1 - n)))
    if fitting and not (found and n <= READING.few_digits):  # short decimals fit any format
        name = fitting[0]
        found.append(Floor(name, relative=2.0 ** -MANTISSA[name], absolute=READING.subnormal if name == "float16" else 0.0))
    return found


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
