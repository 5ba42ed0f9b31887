"""Which test or family comes next: one procedure for ``recover`` and ``diagnose``, decided on what was found."""

from unsoftmax.deciding.procedure import Decision, Try

__all__ = ["Decision", "Try"]
