"""Which functions go with an array: what every step asks, so that the usual answer must be quick."""

from __future__ import annotations

from typing import Any

import array_api_compat
import array_api_compat.numpy
import numpy as np


def array_namespace(*arrays: Any) -> Any:
    """The functions for arrays of this kind, whatever library they come from."""
    for array in arrays:
        if type(array) is not np.ndarray:
            return array_api_compat.array_namespace(*arrays)
    return array_api_compat.numpy
