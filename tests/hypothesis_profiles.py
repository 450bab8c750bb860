"""How many examples the properties look at: few in ``make test``, all in ``make test-all``.

Choose with HYPOTHESIS_PROFILE or --hypothesis-profile: "fast", which is the default, looks at the same
examples every time; "full" looks at all. Neither limits how long an example may take.
"""

import os

from hypothesis import HealthCheck, settings

FULL_EXAMPLES = 100
FAST_EXAMPLES = 20

BUSY_MACHINE = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("full", max_examples=FULL_EXAMPLES, **BUSY_MACHINE)
settings.register_profile("fast", max_examples=FAST_EXAMPLES, derandomize=True, database=None, **BUSY_MACHINE)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


def examples(full: int, **more: object) -> settings:
    """Return settings with this many examples in the full profile, and fewer in the others."""
    return settings(max_examples=max(1, full * settings.default.max_examples // FULL_EXAMPLES), **more)
