"""Checks the requirements of a source before Spark starts: its broker, topology, component and topics."""

from acktree.core import world
from acktree.core.kafka.clients import make_admin
from acktree.core.topology.registry import Registry
from acktree.producers.spouts.driver.sources.source_watch import SourceWatch
from acktree.spark.shared.bolt_topics import BoltTopics
from acktree.spark.shared.options import SourceOptions


def check_source(options: SourceOptions) -> None:
    """Raise the AcktreeError that a source with these options would raise, without Spark."""
    admin = make_admin(options.bootstrap, options.kafka)
    registry = Registry(options.bootstrap, options.topology, options.kafka)
    options = options.within(registry.history.latest)
    try:
        if options.spout:
            SourceWatch(admin, options, registry, world.monotonic_s).topics()
        else:
            BoltTopics(admin, options, registry.history.latest)
    finally:
        registry.close()
