"""Settings for the whole suite."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# No deadline: the suite never judges by wall time. The machines that run it are small, hence the modest count.
settings.register_profile("suite", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")
