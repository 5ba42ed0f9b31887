"""Hypothesis for a shared machine: no deadlines, repeatable examples."""

from hypothesis import HealthCheck, settings

settings.register_profile("suite", deadline=None, derandomize=True, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

collect_ignore_glob = ["peers/*"]  # servers that tests start in processes of their own
