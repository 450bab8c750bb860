"""Faults of processes and of user code: kills, stops, zombies, restarts, clocks, bad deploys.

Invariant: each strikes when it is called; ``System.heal`` ends what would keep a system from finishing.
"""

from acktree.producers.kafka.at_least_once import AtLeastOnce
from acktree.testing.virtual.kernel import Process
from simulation.actors import Mind
from simulation.fault_plan import Fault, at_call, kind, of_process, role_of
from simulation.system import System

COMMITS_S = 2 * AtLeastOnce.commit_interval_s
"""Within what a worker that has executed something commits."""


@kind("kill")
def _kill(system: System, fault: Fault) -> None:
    if (process := role_of(system, fault).process) is not None:
        system.kernel.kill(process)


@kind("kill before a call")
def _kill_at_call(system: System, fault: Fault) -> None:
    process = role_of(system, fault).process
    if process is not None:
        at_call(system, of_process(process, fault.call), fault.number % 20, system.kernel.kill)


@kind("kill after some calls")
def _kill_after_calls(system: System, fault: Fault) -> None:
    process = role_of(system, fault).process
    if process is not None:
        at_call(system, of_process(process), fault.number, system.kernel.kill)


@kind("kill an acker")
def _kill_acker(system: System, fault: Fault) -> None:
    if (process := role_of(system, fault, "acker").process) is not None:
        system.kernel.kill(process)


@kind("kill a spout")
def _kill_spout(system: System, fault: Fault) -> None:
    if (process := role_of(system, fault, "spout", "spark").process) is not None:
        system.kernel.kill(process)


@kind("kill everything")
def _kill_all(system: System, _fault: Fault) -> None:
    for role in system.roles:
        if role.process is not None:
            system.kernel.kill(role.process)


@kind("kill before delivery")
def _kill_before_delivery(system: System, fault: Fault) -> None:
    """The broker takes a worker's commits, but none of its records, until the worker dies."""
    process, before = role_of(system, fault, "worker").process, system.cluster.holds
    if process is None:
        return
    system.cluster.holds = lambda writer, topic, age_s: writer is process or before(writer, topic, age_s)
    system.kernel.call_after(COMMITS_S + min(fault.seconds, 2.0), lambda: system.kernel.kill(process))


@kind("kill before an answer")
def _kill_before_answer(system: System, fault: Fault) -> None:
    """What was asked for is done, and who asked never hears of it."""
    before, process = system.world.lose_response, role_of(system, fault).process
    left = fault.number % 10

    def lose(asking: Process, call: str) -> bool:
        nonlocal left
        if asking is process and left >= 0:
            left -= 1
            if left < 0:
                system.kernel.kill(asking)
        return before(asking, call)

    system.world.lose_response = lose


@kind("stop a process")
def _stop(system: System, fault: Fault) -> None:
    if (process := role_of(system, fault).process) is not None:
        system.kernel.stop(process, fault.seconds)


@kind("stop everything")
def _stop_all(system: System, fault: Fault) -> None:
    for role in system.roles:
        if role.process is not None:
            system.kernel.stop(role.process, fault.seconds)


@kind("replace a stopped process")
def _zombie(system: System, fault: Fault) -> None:
    """A process hangs, its successor starts, and then it goes on: a zombie."""
    role = role_of(system, fault)
    if role.process is not None:
        system.kernel.stop(role.process, max(fault.seconds, 1.0))
        system.start(role)


@kind("start a second process")
def _second(system: System, fault: Fault) -> None:
    """An operator starts a role twice; the first goes on, and nobody restarts it."""
    system.start(role_of(system, fault))


@kind("restart in order")
def _restart(system: System, fault: Fault) -> None:
    role = role_of(system, fault)
    if role.service is not None:
        role.service.stop()


@kind("restart everything in order")
def _restart_all(system: System, _fault: Fault) -> None:
    for role in system.roles:
        if role.service is not None:
            role.service.stop()


@kind("step a process's clock")
def _step_clock(system: System, fault: Fault) -> None:
    system.checker.retries.is_time_true = False
    if (process := role_of(system, fault).process) is not None:
        process.clock_step_s = (fault.seconds + 1) * (60 if fault.number % 2 else -60)


@kind("cut a process off")
def _cut_off(system: System, fault: Fault) -> None:
    process = role_of(system, fault).process
    if process is not None:
        system.world.cut_off.add(process)
        system.kernel.call_after(fault.seconds, lambda: system.world.cut_off.discard(process))


@kind("bad deploy")
def _bad_deploy(system: System, fault: Fault) -> None:
    temper = _mind(system, fault).temper
    before, temper.fail = temper.fail, 1.0
    system.kernel.call_after(min(fault.seconds, 6.0), lambda: setattr(temper, "fail", before))


@kind("slow bolt")
def _slow_bolt(system: System, fault: Fault) -> None:
    temper = _mind(system, fault).temper
    before, temper.slow = temper.slow, 0.5
    system.kernel.call_after(min(fault.seconds, 6.0), lambda: setattr(temper, "slow", before))


@kind("wait for silence")
def _silence(system: System, fault: Fault) -> None:
    """No spout emits for a while."""
    for messages in system.messages.values():
        messages.silent_until_s = system.kernel.now_s + fault.seconds


def _mind(system: System, fault: Fault) -> Mind:
    minds = list(system.minds.values())
    return minds[fault.target % len(minds)]
