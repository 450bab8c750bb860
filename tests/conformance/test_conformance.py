"""The simulated Kafka shows what a real one shows, and offers nothing that the real clients do not have."""

import ast
import inspect
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient

from acktree.testing.kafka.broker.cluster import Cluster
from acktree.testing.kafka.broker.network import Network
from acktree.testing.kafka.clients.admin import SimulatedAdmin
from acktree.testing.kafka.clients.consumer import SimulatedConsumer
from acktree.testing.kafka.clients.message import SimulatedMessage
from acktree.testing.kafka.clients.producer import SimulatedProducer
from acktree.testing.virtual.errors import NotSimulated
from acktree.testing.virtual.kernel import Kernel
from conformance.comparison import Difference, compare, run_simulated
from conformance.differences import KNOWN
from conformance.generator import generate
from conformance.interpreter import VERBS
from conformance.results import error_result
from conformance.script import MAX_OPERATIONS, SKIPPED, shrink

JOBS = 8


def differences(bootstrap: str, seeds: range) -> list[Difference]:
    """Compare the scripts of seeds, several at a time.

    On a busy machine a real client may be late: what differs has to differ again, alone.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})

    def check(seed: int) -> Difference | None:
        return compare(generate(seed), bootstrap, admin, f"conformance-{uuid.uuid4().hex[:12]}")

    with ThreadPoolExecutor(JOBS) as pool:
        suspects = [
            seed for seed, found in zip(seeds, pool.map(check, seeds), strict=True) if found is not None
        ]
    return [found for seed in suspects if (found := check(seed)) is not None]


@pytest.mark.abandons_clients
@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 60), marks=pytest.mark.slow)], ids=repr)
def test_random_scripts_show_the_same_on_both_kafkas(bootstrap: str, seeds: range):
    found = differences(bootstrap, seeds)
    assert not found, found[0]


# The suite itself.


def test_scripts_of_a_few_hundred_seeds_use_every_operation():
    scripts = [generate(seed) for seed in range(300)]
    drawn = {operation[0] for script in scripts for operation in script}
    assert drawn == VERBS.keys() - {"clean"}  # a cleaner looks for work only now and then
    assert max(map(len, scripts)) == MAX_OPERATIONS


def test_a_seed_has_one_script_and_one_run():
    for seed in range(10):
        assert generate(seed) == generate(seed)
        assert run_simulated(generate(seed)) == run_simulated(generate(seed))


def test_most_operations_of_a_script_find_something_to_work_on():
    results = [result for seed in range(50) for result in run_simulated(generate(seed))]
    assert sum(result == SKIPPED for result in results) < len(results) / 4


def test_any_part_of_a_script_is_a_script():
    script = generate(3)
    for skipped in range(len(script)):
        shorter = script[:skipped] + script[skipped + 1 :]
        assert len(run_simulated(shorter)) == len(shorter)


def test_shrinking_leaves_only_what_is_needed():
    script = [("a",), ("b",), ("c",), ("d",), ("e",)]
    assert shrink(script, lambda part: {("b",), ("e",)} <= set(part)) == [("b",), ("e",)]


def test_leaving_a_known_difference_out_again_changes_nothing():
    for seed in range(10):
        script = generate(seed)
        for operation, result in zip(script, run_simulated(script), strict=True):
            for known in KNOWN:
                once = known.normalise(operation, result)
                assert known.normalise(operation, once) == once, known.what


def test_errors_keep_their_name_and_flags():
    error = KafkaError(KafkaError._FENCED, "text", fatal=True)
    assert error_result(error) == ["_FENCED", "fatal"]
    assert error_result(None) is None


# The interface.

CLIENTS: list[tuple[type, type, Callable[[], Any]]] = [
    (SimulatedConsumer, Consumer, lambda: Consumer({"group.id": "g"})),
    (SimulatedProducer, Producer, lambda: Producer({"bootstrap.servers": "127.0.0.1:1"})),
    (SimulatedAdmin, AdminClient, lambda: AdminClient({"bootstrap.servers": "127.0.0.1:1"})),
]


@cache
def stubs() -> ast.Module:
    """Return confluent's stubs."""
    return ast.parse((Path(confluent_kafka.__file__).parent / "cimpl.pyi").read_text())


def methods(simulated: type) -> list[str]:
    found = inspect.getmembers(simulated, inspect.isfunction)
    return [name for name, _ in found if not name.startswith("_")]


def real_parameters(real: type, name: str) -> list[str]:
    """Return the parameters of a real method: those of a C function are in confluent's stubs."""
    if inspect.isfunction(getattr(real, name)) and name != "list_topics":
        return list(inspect.signature(getattr(real, name)).parameters)[1:]
    kind = "Consumer" if real is AdminClient and name == "list_topics" else real.__name__
    kind = "Producer" if real is AdminClient and name == "poll" else kind
    (stub,) = (node for node in stubs().body if isinstance(node, ast.ClassDef) and node.name == kind)
    found: dict[str, None] = {}
    for node in stub.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            found |= dict.fromkeys(each.arg for each in (*node.args.args[1:], *node.args.kwonlyargs))
    return list(found)


def takes_keywords(method: Callable[..., Any]) -> bool:
    try:
        method(certainly_no_parameter=None)
    except TypeError as error:
        return "takes no keyword arguments" not in str(error)
    return True


@pytest.mark.parametrize(("simulated", "real", "make"), CLIENTS, ids=["consumer", "producer", "admin"])
def test_every_method_takes_what_the_real_one_takes(simulated: type, real: type, make: Callable[[], Any]):
    client = make()
    for name in methods(simulated):
        theirs = real_parameters(real, name)
        ours = list(inspect.signature(getattr(simulated, name)).parameters.values())[1:]
        ordered = [each.name for each in ours if each.kind not in (each.KEYWORD_ONLY, each.VAR_KEYWORD)]
        if name == "commit":  # the stubs have it with keywords only
            ordered.remove("message")
        assert ordered == theirs[: len(ordered)], name
        named = {each.name for each in ours if each.kind is each.KEYWORD_ONLY}
        assert named <= {*theirs, "request_timeout", "isolation_level"}, name
        if ordered and not takes_keywords(getattr(client, name)):
            assert all(each.kind is each.POSITIONAL_ONLY for each in ours), f"{name} takes no keywords"


@pytest.mark.parametrize("name", methods(SimulatedMessage))
def test_every_method_of_a_message_exists_on_the_real_class(name: str):
    assert hasattr(Message, name)


@pytest.mark.parametrize("simulated", [SimulatedConsumer, SimulatedProducer, SimulatedAdmin])
def test_a_call_that_is_not_simulated_says_so_by_name(simulated: type):
    kernel = Kernel()
    client = simulated(Network(Cluster(kernel), kernel.process("p"), lambda: 0.0), {})
    with pytest.raises(NotSimulated, match="set_sasl_credentials"):
        client.set_sasl_credentials("user", "password")
