"""MODULE:NAME is loaded as a bolt or spout that can run, or is one clear error."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from acktree.core.user_code import UserCodeFailed, clear_user_errors
from acktree.producers import AsyncBolt, BasicBolt, BatchBolt, Bolt, Spout
from acktree.producers.errors import BadHandler
from acktree.producers.loading import make_handler
from acktree.producers.spouts.spout_loop import SpoutWorker
from acktree.producers.worker.executing.bolt_kinds import BOLTS
from acktree.producers.worker.loop import Worker
from acktree.wire.codec import decode_ack
from acktree.wire.errors import MalformedRecord
from deadlines import ANSWER_S
from producers.cluster import WorkerCluster, until

CODE = """
from acktree.producers import BasicBolt, Spout

class Good(BasicBolt):
    def execute(self, tup, emit):
        pass

class Forgot(BasicBolt):
    def exceute(self, tup, emit):
        pass

class Picky(Good):
    def __init__(self, size):
        pass

class Unlucky(Good):
    def __init__(self):
        int("nine")

def five():
    return 5

number = 5
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "handlers_here.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "handlers_here", raising=False)
    return tmp_path


def test_a_class_in_the_current_folder_is_instantiated(folder):
    assert type(make_handler("handlers_here:Good", BOLTS, "execute")).__name__ == "Good"


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("acktree.producers:BasicBolt", r"BasicBolt has no execute\(\): subclass it"),
        ("acktree.producers:Bolt", r"Bolt has no execute\(\): subclass it"),
        ("handlers_here:Forgot", r"Forgot has no execute\(\): subclass it"),
        ("handlers_here", "not MODULE:NAME"),
        ("handlers_here:Nobody", "has no 'Nobody'"),
        ("nowhere_at_all:X", "no module 'nowhere_at_all'"),
        ("handlers_here:Spout", "is not a BasicBolt or Bolt or BatchBolt"),
        ("handlers_here:Picky", "cannot be called without arguments"),
        ("handlers_here:five", "returned 5"),
        ("handlers_here:number", "neither a class nor a function"),
    ],
)
def test_anything_else_is_refused_with_the_reason(folder, place, message):
    with pytest.raises(BadHandler, match=message):
        make_handler(place, BOLTS, "execute")


def test_a_class_that_raises_is_reported_with_the_users_line(folder):
    with pytest.raises(
        UserCodeFailed, match=r"Unlucky raised ValueError: .*'nine' \(in .*handlers_here.py, line 18\)"
    ):
        make_handler("handlers_here:Unlucky", BOLTS, "execute")


def test_a_module_that_raises_is_reported_with_its_line(folder):
    (folder / "broken_here.py").write_text("import os\nos.environ['NO_SUCH_VARIABLE']\n")
    with pytest.raises(
        BadHandler, match=r"cannot be imported: KeyError: 'NO_SUCH_VARIABLE' \(in .*, line 2\)"
    ):
        make_handler("broken_here:X", BOLTS, "execute")


def test_acktrees_own_errors_and_broken_invariants_are_raised_unchanged():
    def breaks():
        decode_ack(7)

    with pytest.raises(MalformedRecord), clear_user_errors("a bolt"):
        raise MalformedRecord("ours")
    with pytest.raises(TypeError), clear_user_errors("a bolt"):
        breaks()
    with pytest.raises(UserCodeFailed, match="a bolt raised ValueError"), clear_user_errors("a bolt"):
        int("x")


@pytest.mark.parametrize("bare", [BasicBolt, Bolt, BatchBolt, AsyncBolt])
def test_a_bare_bolt_is_refused_before_it_fails_every_tuple(bare):
    with pytest.raises(BadHandler, match="execute"):
        Worker("127.0.0.1:1", "t", bare())


class Unawaited(BasicBolt):
    async def execute(self, tup, emit):
        pass


class Unawaitable(AsyncBolt):
    def execute(self, tup, emit):
        pass


@pytest.mark.parametrize("bolt", [Unawaited(), Unawaitable()])
def test_an_execute_that_would_never_run_is_refused(bolt):
    with pytest.raises(BadHandler, match="execute"):
        Worker("127.0.0.1:1", "t", bolt)


class GeneratesChildren(BasicBolt):
    def execute(self, tup, emit):
        yield emit(tup.value)


class GeneratesAsync(BasicBolt):
    async def execute(self, tup, emit):
        yield emit(tup.value)


class TicksAsync(Bolt):
    def execute(self, tup, collector):
        collector.ack(tup)

    async def tick(self, collector):
        pass


@pytest.mark.parametrize("kind", [GeneratesChildren, GeneratesAsync, TicksAsync])
def test_a_bolt_whose_method_would_only_make_a_generator_or_coroutine_is_refused(kind):
    with pytest.raises(BadHandler, match=rf"{kind.__name__}\.(execute|tick) is "):
        Worker("127.0.0.1:1", "t", kind())


class IdleSource(Spout):
    def next_tuple(self, emitter):
        pass


async def never_run(self, *arguments):
    raise AssertionError


@pytest.mark.parametrize("method", ["next_tuple", "ack", "fail", "gave_up", "prepare"])
def test_a_spout_with_an_async_method_that_is_never_awaited_is_refused(method: str):
    with pytest.raises(BadHandler, match=rf"Unrun\.{method} is async, but would never be awaited"):
        SpoutWorker("127.0.0.1:1", "t", type("Unrun", (IdleSource,), {method: never_run})())


def test_a_bare_spout_is_refused():
    with pytest.raises(BadHandler, match="next_tuple"):
        SpoutWorker("127.0.0.1:1", "t", Spout())


SPOUT = """
from acktree.producers import Spout

class Three(Spout):
    left = 3

    def next_tuple(self, emitter):
        if self.left:
            self.left -= 1
            emitter.emit(b"m%d" % self.left, self.left)
"""


def test_a_spout_runs_from_the_command_line_and_stops_cleanly(cluster: WorkerCluster, tmp_path: Path):
    cluster.apply(one=(["a"], []))
    (tmp_path / "three.py").write_text(SPOUT)
    command = [sys.executable, "-m", "acktree.console.main", "spout", "run", "three:Three"]
    command += ["-b", cluster.bootstrap, "--topology", cluster.name, "--spout", "s", "--task", "0"]
    process = subprocess.Popen(command, cwd=tmp_path, env=dict(os.environ), stderr=subprocess.PIPE, text=True)
    until(lambda: len(cluster.read(cluster.topic("a"))) == 3 or process.poll() is not None, "three records")
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=ANSWER_S)
    assert process.returncode == 0, stderr
    assert stderr.startswith("ready spout s of topology")
