"""Checks whether the parts found of a tree add up: the acker's arithmetic, by component. Pure.

The tuples that a spout's init and a bolt's acks report must be the tuples found. Records with custom
timestamps, compaction and retention hide tuples from a search by time; that shows here.
Invariant: it does not report sums that differ for a known reason, such as a tuple in hand.
"""

from acktree.console.view.records.open_edges import Certainty, find_open
from acktree.console.view.records.tree import RootFindings, edges_of
from acktree.core.errors import UnknownVersion
from acktree.core.topology.registry import History, Published
from acktree.wire.ids import consumer_edge, emitted_value, fnv1a64


def what_is_missing(gathered: RootFindings, history: History, spout: str, is_acked: bool) -> list[str]:
    """Return sentences on what must be in the log, and was not found."""
    try:
        topology = history.latest if gathered.version is None else history.at(gathered.version)
        emitted = _emitted(gathered, history, topology)
    except UnknownVersion as unknown:
        return [str(unknown)]
    missing = []
    if gathered.inits and spout in emitted and gathered.inits[0][0] != emitted[spout]:
        missing.append(f"not all tuples of spout {spout} were found")
    for bolt, table in topology.bolts.items():
        acks = [value for value, each in gathered.messages if _is_ack_of(bolt, each.kind, each.task)]
        total = 0
        for value in acks:
            total ^= value
        for found in gathered.tuples:
            if found.at.topic in table.reads and bolt in history.at(found.version).readers_of(found.at.topic):
                total ^= consumer_edge(found.edge, fnv1a64(bolt))
        if is_acked and bolt in emitted and total != emitted[bolt]:
            missing.append(f"not all tuples or acks of bolt {bolt} were found")
    return missing


def is_complete(gathered: RootFindings, history: History, spout: str) -> bool:
    """Return whether all tuples of a tree were found for certain, though edges of it may be open."""
    try:
        topology = history.latest if gathered.version is None else history.at(gathered.version)
        emitted = _emitted(gathered, history, topology)
    except UnknownVersion:
        return False
    if not gathered.inits or emitted.get(spout) != gathered.inits[0][0]:
        return False
    edges, owners = edges_of(gathered.root, gathered.tuples, history)
    total = gathered.inits[0][0]
    sums = dict.fromkeys(topology.bolts, 0)
    for value, each in gathered.messages:
        total ^= value
        if each.kind == "ack":
            bolt = each.task.partition("@")[0]
            sums[bolt] = sums.get(bolt, 0) ^ value
    opened = find_open(total, edges)
    if opened.certainty is not Certainty.EXACT:
        return False
    for index in set(range(len(edges))) - set(opened.indexes):
        bolt = owners[index][1]
        sums[bolt] = sums.get(bolt, 0) ^ edges[index]
    return all(emitted.get(bolt) == total for bolt, total in sums.items())


def _is_ack_of(bolt: str, kind: str, task: str) -> bool:
    return kind == "ack" and task.partition("@")[0] == bolt


def _emitted(gathered: RootFindings, history: History, topology: Published) -> dict[str, int]:
    """Return, by component, the XOR of the consumer edges of what it emitted; not where topics are shared."""
    emitters: dict[str, list[str]] = {}
    emits = {name: table.emits for name, table in topology.spouts.items()}
    emits |= {name: table.emits for name, table in topology.bolts.items()}
    for name, topics in emits.items():
        for topic in topics:
            emitters.setdefault(topic, []).append(name)
    shared = {name for names in emitters.values() if len(names) > 1 for name in names}
    sums = dict.fromkeys(emits, 0)
    for found in gathered.tuples:
        hashes = history.readers(found.version, found.at.topic).hashes
        for name in emitters.get(found.at.topic, ()):
            sums[name] ^= emitted_value(found.edge, hashes)
    return {name: total for name, total in sums.items() if name not in shared}
