"""Runs the state machine of the registry: `python -m tests.fuzz.registry.session SECONDS FINDINGS COUNTS`.

Hypothesis prints the shortest sequence that breaks a rule. The session then ends with status 1.
"""

import logging
import random
import sys
import time
from pathlib import Path

from hypothesis import Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.fuzz.registry.machine import RegistryMachine
from tests.fuzz.shared_counts import SharedCounts

_ROUND = 50
_STEPS = 60


def main(seconds: str, findings: str, counts: str) -> None:
    """Run sequences until the time is over."""
    # Failures of loads are part of the sequences.
    logging.disable()
    shared = SharedCounts.create(Path(counts))

    class Counted(RegistryMachine):
        def teardown(self) -> None:
            super().teardown()
            shared.add(is_accepted=True)

    phases = (Phase.generate, Phase.shrink)
    options = settings(max_examples=_ROUND, stateful_step_count=_STEPS, deadline=None, database=None, phases=phases)
    end_s = time.monotonic() + float(seconds)
    while time.monotonic() < end_s:
        number = random.SystemRandom().getrandbits(32)
        seeded = seed(number)(type("Seeded", (Counted,), {}))
        try:
            run_state_machine_as_test(seeded, settings=options)
        except BaseException:
            (Path(findings) / f"registry-{number}").write_text(f"{number}\n")
            raise


if __name__ == "__main__":
    main(*sys.argv[1:])
