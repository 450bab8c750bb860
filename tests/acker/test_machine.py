"""The state machine of explicit trees, by itself and then its events through a real broker."""

from hypothesis import settings

from acker.machine import AckerMachine

AckerMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
TestAckerMachine = AckerMachine.TestCase
