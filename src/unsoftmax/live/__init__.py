"""The live view: one page on this machine where a run can be watched while it asks."""

from unsoftmax.live.board import Board
from unsoftmax.live.server import LiveServer
from unsoftmax.live.view import LiveView, live_view

__all__ = ["Board", "LiveServer", "LiveView", "live_view"]
