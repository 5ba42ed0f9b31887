"""What a caller wishes of a recovery, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from unsoftmax.errors import check_positive, is_whole
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The options of ``recover``; see there."""

    family: str = "auto"
    rank: int | None = None
    heads: int | None = None
    tolerance: float | None = None
    max_norm: float | None = None
    budget: int | None = None
    accuracy: float | None = None
    adaptive: bool = True
    method: Literal["factored", "nuclear"] | None = None
    grid: Any = None
    seed: int | None = None
    natural: Floats | None = None
    max_length: int | None = None
    labels: bool | None = None
    check: int | None = None

    @property
    def auto(self) -> bool:
        """Whether the family is to be found out."""
        return self.family == "auto"

    def __post_init__(self) -> None:
        lowest = (("rank", 0), ("heads", 1), ("budget", 1), ("seed", 0), ("max_length", 1), ("check", 1))
        for name, least in lowest:
            value = getattr(self, name)
            if value is not None and not is_whole(value, least):
                raise ValueError(f"{name} is {value!r}; it must be a whole number of at least {least}.")
            object.__setattr__(self, name, None if value is None else int(value))
        if self.method not in (None, "factored", "nuclear"):
            raise ValueError(f"method is {self.method!r}; it must be 'factored' or 'nuclear'.")
        if self.method is not None and self.adaptive:
            raise ValueError("method chooses how fixed probes are solved: it goes with adaptive=False.")
        for name in ("tolerance", "max_norm", "accuracy"):
            value = getattr(self, name)
            check_positive(**{name: value})
            object.__setattr__(self, name, None if value is None else float(value))
        words = isinstance(self.grid, str)
        steps = np.ones(1) if self.grid is None or words else np.asarray(self.grid)
        if steps.dtype.kind not in "fiu" or (words and self.grid != "auto") or not (np.isfinite(steps).all() and (steps > 0).all()):
            raise ValueError(f"grid is {self.grid!r}; it must be a positive step, one per row, or 'auto'.")
        if not ((steps >= 1e-15) & (steps <= 1e15)).all():  # whole numbers of finer ones have more digits than any weight
            raise ValueError(f"grid is {self.grid!r}; it must lie between 1e-15 and 1e15.")

    def checked_for(self, width: int) -> None:
        """Refuse what does not suit tokens of this width."""
        if self.rank is not None and self.rank > width:
            raise ValueError(f"rank is {self.rank}, but the width is only {width}.")
        if self.grid is not None and not isinstance(self.grid, str) and np.shape(self.grid) not in ((), (1,), (width,)):
            raise ValueError(
                f"grid has shape {np.shape(self.grid)}; it must be one step, or one for each of the {width} rows of W."
            )

    def noted(self) -> dict[str, Any]:
        """What was wished, as a journal and a report keep it."""
        wished = {name: getattr(self, name) for name in self.__slots__}
        return {name: _noted(value) for name, value in wished.items() if value is not None}


def _noted(value: Any) -> Any:
    if isinstance(value, bool | int | float | str):
        return value
    array = np.asarray(value)
    return array.tolist() if array.size <= 4096 else f"{array.shape} numbers, their sum {array.sum():.17g}"
