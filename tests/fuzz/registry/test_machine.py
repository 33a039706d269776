"""The state machine of the registry, briefly. `make fuzz TARGETS=registry` runs it for longer, with other sequences."""

from hypothesis import settings

from tests.fuzz.registry.machine import RegistryMachine

TestRegistry = RegistryMachine.TestCase
TestRegistry.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
