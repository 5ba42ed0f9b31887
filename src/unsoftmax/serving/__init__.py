"""Hosting a target over the Open Inference Protocol, for trying an audit against a real server."""

from unsoftmax.serving.server import free_port, serve

__all__ = ["free_port", "serve"]
