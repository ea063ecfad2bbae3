"""How many examples fuzzing tries: few, and always the same, unless FUZZ_EXAMPLES asks for more.

FUZZ_EXAMPLES=2000 bash scripts/test.sh tests/fuzz --timeout 0     as many new ones of each
"""

import os

from hypothesis import HealthCheck, settings

ASKED = os.environ.get("FUZZ_EXAMPLES")


def fuzzed(few: int) -> settings:
    """The settings of a test that tries so many examples where none are asked for."""
    return settings(
        max_examples=int(ASKED) if ASKED else few,
        derandomize=not ASKED,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
