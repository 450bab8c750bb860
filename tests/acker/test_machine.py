"""The state machine of explicit trees, by itself and then its events through a real broker."""

from acker.machine import AckerMachine
from hypothesis_profiles import examples

AckerMachine.TestCase.settings = examples(80, stateful_step_count=50)
TestAckerMachine = AckerMachine.TestCase
