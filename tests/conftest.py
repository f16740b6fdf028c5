"""What holds for every test: property tests never depend on the clock, and in CI not on chance either."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Before the first test module imports onnxruntime: its telemetry writes into the home folder.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

settings.register_profile(
    "relayout", deadline=None, derandomize="CI" in os.environ, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("relayout")
