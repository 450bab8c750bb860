"""The handle inside a client is found, and what is none is never taken for one."""

import pytest

from acktree.producers.native.librdkafka import NoColumns, find_handle, librdkafka
from acktree.schemas.clients import make_consumer, make_producer


class Holder:
    """An object whose first word is the address of another one."""

    __slots__ = ("other",)


@pytest.mark.parametrize("client", [make_producer({}), make_consumer({"group.id": "g"})])
def test_a_client_has_a_handle_that_names_it(client):
    assert librdkafka().rd_kafka_opaque(find_handle(client)) == id(client)


def test_what_is_not_a_handle_is_never_taken_for_one():
    for other in (make_producer({}), b"x" * 40_000, None):
        holder = Holder()
        holder.other = other
        with pytest.raises(NoColumns, match="is not its handle"):
            find_handle(holder)
    with pytest.raises(NoColumns, match="no handle where it should stand"):
        find_handle([1, 2, 3])
