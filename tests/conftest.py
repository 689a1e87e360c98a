"""What only the host's own tests need; the fixtures shared with plugins are in `replicator_testbed.fixtures`."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# No deadline: on a busy machine of two cores it would judge the machine, not the code. In `make test` the examples are
# the same every time, so that a red run is red again; HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("test", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "test"))
