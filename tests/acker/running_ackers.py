"""Ackers that run: in a thread, in a process to be killed, in a simulated process; and waiting for them."""

import logging
import os
import signal
import subprocess
import sys
import uuid

from acktree.acker.service import Acker
from acktree.core import world
from deadlines import stretched

DEADLINE_S = stretched(40)
COMPILE_DEADLINE_S = stretched(90)  # the first start on a machine compiles


def wait_for(condition, what, deadline_s=DEADLINE_S, step=lambda: world.sleep(0.02)):
    """Wait until condition() is true; step() is called in between."""
    deadline = world.monotonic_s() + deadline_s
    while not condition():
        assert world.monotonic_s() < deadline, f"waited {deadline_s} s for {what}"
        step()


class RunningAcker:
    """An acker in a thread of this process."""

    def __init__(self, bootstrap, name, **settings):
        self.ready, self.error = [], None
        self.acker = Acker(bootstrap, name, user=settings, ready=self.ready.append)
        self._thread = world.start_thread(self._run, "acker")

    def _run(self):
        try:
            self.acker.run()
        except BaseException as error:
            self.error = error

    def await_ready(self):
        wait_for(lambda: self.ready or self.error, "the acker to be ready")
        assert self.error is None, self.error
        return self

    @property
    def partitions(self):
        return sorted(self.acker.ownership.partitions)

    def leave(self):
        """Begin to stop, without waiting for the end."""
        self.acker.stop()

    @property
    def is_gone(self):
        return not self._thread.is_alive()

    def stop(self):
        self.acker.stop()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()


class AckerProcess:
    """An acker as users run it, to be killed."""

    def __init__(self, bootstrap, name, folder, options, settings):
        options = [*options, *(text for item in settings.items() for text in ("-X", "=".join(item)))]
        command = [os.path.join(os.path.dirname(sys.executable), "acktree"), "acker", "run"]
        self._log = folder / f"acker-{uuid.uuid4().hex[:6]}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--topology", name, "-b", bootstrap, *options], stderr=log, stdout=log
            )

    def log(self):
        return self._log.read_text()

    def await_ready(self):
        is_decided = lambda: "ready " in self.log() or self._process.poll() is not None  # noqa: E731
        wait_for(is_decided, "the acker to be ready", COMPILE_DEADLINE_S)
        assert self._process.poll() is None, self.log()
        return self

    def kill(self):
        self._process.kill()
        self._process.wait()

    def pause(self):
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self._process.send_signal(signal.SIGCONT)

    def stop(self):
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        return self._process.wait(DEADLINE_S)


class SimulatedAckerProcess(logging.Handler):
    """An acker in a simulated process, with the verbs of AckerProcess; it collects what the acker logs."""

    def __init__(self, simulation, name, settings):
        super().__init__()
        self._kernel, self._lines = simulation.kernel, []
        self._process = simulation.start_process(lambda: self._run(name, settings))
        logging.getLogger("acktree.acker").addHandler(self)

    def _run(self, name, settings):
        Acker("simulated", name, user=settings, ready=self._lines.append).run()

    def emit(self, record):
        if self._kernel.is_in_task and self._kernel.current.process is self._process:
            self._lines.append(record.getMessage())

    def log(self):
        return "\n".join(self._lines)

    def await_ready(self):
        wait_for(lambda: "ready " in self.log() or self._process.error, "the acker to be ready")
        assert self._process.error is None, self._process.error
        return self

    def kill(self):
        logging.getLogger("acktree.acker").removeHandler(self)
        self._kernel.kill(self._process)

    def pause(self):
        self._process.is_stopped = True

    def go_on(self):
        self._process.is_stopped = False
