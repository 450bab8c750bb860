"""The handle inside a client is found, and nothing else is taken for one."""

import os
import subprocess
import sys

import pytest

from acktree.core.kafka.clients import make_consumer, make_producer
from acktree.spark.native.librdkafka import find_handle, librdkafka
from acktree.spark.native.switch import NativeOff


class Holder:
    """An object whose first word is the address of another one."""

    __slots__ = ("other",)


@pytest.mark.parametrize("client", [make_producer({}), make_consumer({"group.id": "g"})])
def test_the_handle_of_a_client_names_the_client(client):
    assert librdkafka().rd_kafka_opaque(find_handle(client)) == id(client)


def test_anything_else_is_never_taken_for_a_handle():
    for other in (make_producer({}), b"x" * 40_000, None):
        holder = Holder()
        holder.other = other
        with pytest.raises(NativeOff, match="is not its handle"):
            find_handle(holder)
    with pytest.raises(NativeOff, match="no handle at the expected place"):
        find_handle([1, 2, 3])


def test_importing_a_compiled_loop_past_its_loader_raises_and_does_not_abort():
    """Where LLVM does not know a function, it aborts with the next code that is compiled."""
    script = """
import importlib
try:
    importlib.import_module("acktree.spark.native.consume_loop")
except ImportError as error:
    print(error)
import numba
print(numba.njit(lambda: 7)())
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "load_loops" in ran.stdout
    assert ran.stdout.splitlines()[-1] == "7"


def test_one_setting_turns_the_use_of_private_parts_off():
    script = """
from acktree.spark.native.librdkafka import librdkafka
from acktree.spark.native.switch import NativeOff
from acktree.spark.tasks.writing import transactions
for ask in (librdkafka, transactions.batch_transaction):
    try:
        ask()
    except NativeOff as reason:
        print(reason)
"""
    environment = {**os.environ, "ACKTREE_NATIVE": "off"}
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert ran.stdout.splitlines() == ["ACKTREE_NATIVE=off"] * 2, ran.stderr
