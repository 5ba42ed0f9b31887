"""Deployments held against checkpoints: does an endpoint answer as these weights do, and if not, what changed and where."""

from __future__ import annotations

from unsoftmax.deployment.checkpoint import Checkpoint
from unsoftmax.deployment.results import Deployment, Verdict
from unsoftmax.deployment.verify import verify_deployment

__all__ = ["Checkpoint", "Deployment", "Verdict", "verify_deployment"]
