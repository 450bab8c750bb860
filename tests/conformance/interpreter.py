"""Runs a script in a world, and returns the result of each operation."""

from collections.abc import Callable
from typing import Any

from conformance import consumer_steps, group_steps, offset_steps, producer_steps, topic_steps
from conformance.results import Result
from conformance.script import Script
from conformance.session import Session, World

VERBS: dict[str, Callable[..., Result]] = {
    step.__name__: step
    for step in (
        topic_steps.create_topic,
        topic_steps.grow_topic,
        topic_steps.delete_topic,
        topic_steps.delete_records,
        topic_steps.clean,
        topic_steps.list_offsets,
        topic_steps.describe_topics,
        topic_steps.list_topics,
        topic_steps.describe_configs,
        topic_steps.alter_config,
        producer_steps.producer,
        producer_steps.impatient_producer,
        producer_steps.wait_out,
        producer_steps.drop_producer,
        producer_steps.produce,
        producer_steps.flush,
        producer_steps.purge,
        producer_steps.init,
        producer_steps.begin,
        producer_steps.remember_membership,
        producer_steps.send_offsets,
        producer_steps.commit_transaction,
        producer_steps.abort_transaction,
        consumer_steps.consumer,
        group_steps.close_consumer,
        group_steps.remove_consumer,
        consumer_steps.assign,
        consumer_steps.unassign,
        consumer_steps.assignment,
        consumer_steps.seek,
        consumer_steps.pause,
        consumer_steps.resume,
        consumer_steps.take,
        consumer_steps.read,
        consumer_steps.position,
        consumer_steps.watermarks,
        consumer_steps.cached_watermarks,
        offset_steps.commit,
        offset_steps.commit_later,
        offset_steps.committed,
        offset_steps.listed_offsets,
        group_steps.subscribe,
        group_steps.take_over,
        group_steps.pause_as_group,
        group_steps.resume_as_group,
        group_steps.read_as_group,
        group_steps.group_assignment,
        group_steps.describe_group,
        group_steps.delete_group,
    )
}


def run_script(world: World, admin: Any, bootstrap: str, prefix: str, script: Script) -> list[Result]:
    """Run a script; ``prefix`` is that of all names on the broker."""
    session = Session(world, admin, bootstrap, prefix)
    try:
        return [VERBS[verb](session, *arguments) for verb, *arguments in script]
    finally:
        session.close()
