"""All kinds of fault that a search knows; see ``fault_plan``."""

from simulation import broker_faults, operator_faults, process_faults, spark_faults, state_faults
from simulation.fault_plan import (
    FAULTY_S,
    KINDS,
    OPT_IN,
    SECOND_BOLT_DRIVER,
    Fault,
    draw_faults,
    draw_opt_in,
    schedule,
)

PARTS = (process_faults, broker_faults, operator_faults, spark_faults, state_faults)

__all__ = [
    "FAULTY_S",
    "KINDS",
    "OPT_IN",
    "PARTS",
    "SECOND_BOLT_DRIVER",
    "Fault",
    "draw_faults",
    "draw_opt_in",
    "schedule",
]
