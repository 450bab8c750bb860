"""Product code takes time, randomness, threads and clients from ``world.py``: another world can stand in."""

import ast
import asyncio
import itertools
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acktree.core import world
from acktree.core.edges import EdgeSource
from acktree.core.world import Answer, RealWorld, use_world
from acktree.producers import AsyncBolt, BasicBolt
from acktree.producers.columns import Rows
from acktree.producers.testing import BoltDouble
from acktree.spark.native import librdkafka
from acktree.spark.native.switch import NativeOff
from acktree.spark.shared.per_process import PerProcess
from acktree.spark.tasks.producers import TaskProducer
from acktree.spark.tasks.writing import transactions

HOUSE = Path(__file__).parents[1]
PRODUCT = [
    path
    for root in ("schemas", "producers", "acker_consumer", "spark_app", "console/acktree/console/view")
    for path in sorted((HOUSE / root).rglob("*.py"))
]

FORBIDDEN = (
    "time",
    "random",
    "secrets",
    "uuid",
    "threading",
    "_thread",
    "contextvars",
    "multiprocessing",
    "numpy.random",
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "datetime.date.today",
    "os.urandom",
    "os.getpid",
    "os.getrandom",
    "socket.gethostname",
    "asyncio.run",
    "asyncio.new_event_loop",
    "asyncio.get_event_loop",
    "asyncio.set_event_loop",
    "asyncio.to_thread",
    "concurrent.futures.ThreadPoolExecutor",
    "concurrent.futures.ProcessPoolExecutor",
    "confluent_kafka.aio",
)
"""Modules and functions that no product code names."""
FORBIDDEN_CALLS = (
    "confluent_kafka.Consumer",
    "confluent_kafka.Producer",
    "confluent_kafka.admin.AdminClient",
)
"""Classes that product code names only as types."""
SEEDED = {"random.Random", "numpy.random.Generator", "numpy.random.SFC64", "uuid.UUID", "uuid.uuid5"}
"""What draws nothing by itself: the seed, or the whole value, is an argument."""
EXCEPTIONS = {
    ("schemas/acktree/core/world.py", "*"): "the one place",
    (
        "spark_app/acktree/spark/driver/writers.py",
        "threading.Lock",
    ): "guards the environment of a SparkContext, which only a real Spark has",
    (
        "console/acktree/console/view/wire_format.py",
        "threading.Lock",
    ): "one thread of a page at a time asks a schema registry, which is not simulated",
    ("spark_app/acktree/spark/app.py", "*"): "the command's own process: signals, and a JVM beside it",
    ("spark_app/acktree/spark/runtime/jvm_output.py", "*"): "reads what a JVM prints",
    ("spark_app/acktree/spark/runtime/available_now.py", "threading.Thread"): "waits for a query of a JVM",
}


def names(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Yield each name that a module uses, as a dotted path from its import, and whether it is called."""
    origins: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                origins[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                origins[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield f"{node.module}.{alias.name}", False
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        attributes, root = [], node
        while isinstance(root, ast.Attribute):
            attributes.append(root.attr)
            root = root.value
        if isinstance(root, ast.Name) and root.id in origins and id(node) not in inner:
            yield ".".join((origins[root.id], *reversed(attributes))), id(node) in called


def own_ways(source: str) -> list[str]:
    """Return what a module takes from the machine past the world."""
    return [
        name
        for name, is_called in names(ast.parse(source))
        if (is_called and name in FORBIDDEN_CALLS)
        or (name not in SEEDED and any(f"{name}.".startswith(f"{prefix}.") for prefix in FORBIDDEN))
    ]


def test_product_code_takes_everything_from_the_world():
    wrong: dict[str, list[str]] = {}
    unused = dict(EXCEPTIONS)
    for path in PRODUCT:
        file = str(path.relative_to(HOUSE))
        for name in own_ways(path.read_text("utf-8")):
            used = (file, "*") if (file, "*") in EXCEPTIONS else (file, name)
            if used in EXCEPTIONS:
                unused.pop(used, None)
            else:
                wrong.setdefault(file, []).append(name)
    assert wrong == {}
    assert unused == {}


@pytest.mark.parametrize(
    "source",
    [
        "import time\ndef f(now=time.monotonic): ...",
        "from time import sleep\nsleep(1)",
        "import time as t\nt.time()",
        "from threading import Thread",
        "import threading\nthreading.local()",
        "import os\nos.getpid()",
        "import socket\nsocket.gethostname()",
        "import random\nrandom.random()",
        "import uuid\nuuid.uuid4().hex",
        "import secrets\nsecrets.randbits(8)",
        "import numpy as np\nnp.random.default_rng()",
        "from datetime import datetime\ndatetime.now()",
        "import asyncio\nasyncio.new_event_loop()",
        "from confluent_kafka import Consumer\nConsumer({})",
        "import confluent_kafka\nconfluent_kafka.Producer({})",
        "from confluent_kafka.admin import AdminClient as Admin\nAdmin({})",
    ],
)
def test_code_that_bypasses_the_world_is_found(source: str):
    assert own_ways(source)


@pytest.mark.parametrize(
    "source",
    [
        "from acktree.core import world\nworld.monotonic_s()",
        "import random\nrandom.Random(7)",
        "import uuid\nNAMES = uuid.UUID('6f0c3f1e-6a43-4d0c-9d0b-5d1f6f1c2a77')\nuuid.uuid5(NAMES, 'a')",
        "import numpy as np\nnp.random.Generator(np.random.SFC64(7))",
        "from confluent_kafka import Consumer\ndef f(consumer: Consumer) -> None: ...",
        "import os\nos.environ.get('A')",
        "import asyncio\nasync def f(): await asyncio.sleep(1)",
    ],
)
def test_code_that_uses_the_world_is_accepted(source: str):
    assert own_ways(source) == []


class SimulatedWorld(RealWorld):
    """The real world with draws that repeat, several processes, and clients that are not librdkafka's."""

    is_simulated = True

    def __init__(self, seed: int = 1) -> None:
        super().__init__()
        self._draws = random.Random(seed)
        self._by_process: dict[int, dict[Any, Any]] = {}
        self.process = self.thread = 1
        self.used: list[str] = []

    def thread_id(self) -> int:
        return self.thread

    def event_loop(self, max_calls: int | None) -> asyncio.AbstractEventLoop:
        self.used.append("event loop")
        return super().event_loop(max_calls)

    def start_thread(self, run: Callable[[], object], name: str) -> world.Thread:
        self.used.append(name)
        return super().start_thread(run, name)

    def wait_for(self, future: Future[Answer], timeout_s: float) -> Answer:
        self.used.append("wait")
        return super().wait_for(future, timeout_s)

    def random_bits(self, bits: int) -> int:
        return self._draws.getrandbits(bits)

    def process_id(self) -> int:
        return self.process

    def process_state(self) -> dict[Any, Any]:
        return self._by_process.setdefault(self.process, {})

    def producer(self, settings: dict[str, Any], logger: object) -> Any:
        return ListProducer()


class ListProducer:
    """As much of a producer as a task needs to write rows."""

    def __init__(self) -> None:
        self.produced: list[tuple[Any, ...]] = []

    def produce(self, *record: Any) -> None:
        self.produced.append(record)


@pytest.fixture
def simulated() -> Iterator[SimulatedWorld]:
    with use_world(found := SimulatedWorld()):
        yield found


def test_the_same_draws_give_the_same_edges():
    edges = []
    for _ in range(2):
        with use_world(SimulatedWorld(seed=7)):
            source = EdgeSource()
            edges.append([source.one(), *source.many(3).tolist()])
    assert edges[0] == edges[1]
    assert len(set(edges[0])) == 4


def test_another_process_draws_other_edges(simulated: SimulatedWorld):
    source = EdgeSource()
    before = source.many(2)
    simulated.process = 2
    assert not np.isin(source.many(100), before).any()


def test_a_kept_value_belongs_to_one_process_of_one_world(simulated: SimulatedWorld):
    kept: PerProcess[int] = PerProcess()
    numbers = itertools.count()
    found = {}
    for process in (1, 2, 1, 2):
        simulated.process = process
        found.setdefault(process, set()).add(kept.get(lambda: next(numbers), "broker"))
    with use_world(SimulatedWorld()):
        found["another world"] = {kept.get(lambda: next(numbers), "broker")}
    assert found == {1: {0}, 2: {1}, "another world": {2}}
    assert next(numbers) == 3


def test_a_simulated_client_is_never_taken_for_one_of_librdkafka():
    librdkafka.librdkafka()  # kept by the process
    with use_world(SimulatedWorld()):
        with pytest.raises(NativeOff):
            librdkafka.librdkafka()
        with pytest.raises(NativeOff):
            transactions.batch_transaction()
        producer = TaskProducer("broker", {})
        assert producer.produce_rows("words", Rows([b"a", b"b"])) == []
        assert [record[:2] for record in producer.producer.produced] == [("words", b"a"), ("words", b"b")]
    assert librdkafka.librdkafka()


def test_a_collector_is_called_only_by_its_thread_of_the_world(simulated: SimulatedWorld):
    class EmitsElsewhere(BasicBolt):
        def execute(self, tuple, emit):
            simulated.thread = 2
            try:
                emit(b"b")
            finally:
                simulated.thread = 1

    double = BoltDouble(EmitsElsewhere())
    double.give(b"a")
    assert "WrongThread" in double.failed[0]
    assert double.emitted == []


def test_an_event_loop_its_thread_and_its_waits_are_the_worlds(simulated: SimulatedWorld):
    class Upper(AsyncBolt):
        async def execute(self, tuple, emit):
            emit(tuple.value.upper())

    double = BoltDouble(Upper())
    double.give(b"a")
    double.close()
    assert [emission.value for emission in double.emitted] == [b"A"]
    assert simulated.used[:3] == ["event loop", "acktree-bolt", "wait"]
