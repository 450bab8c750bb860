"""Logs one line when a broker goes away, one a minute while it is away, and one when it is back.

librdkafka logs every failed attempt of every client, up to twenty a second each; this process adds its
retries. Invariant: only these are held back and counted; everything else is logged immediately.
"""

import logging
import re
import weakref
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from acktree.core import world
from acktree.core.kafka.errors import is_transient

REMINDER_S = 60.0
QUIET_S = 20.0
"""How long the cluster answers and no attempt fails before an outage is over.

Longer than reconnect.backoff.max.ms with its jitter. What an outage leaves to be done again is done by then.
"""
PROBE_S = 2.0

_FAILURES = frozenset(("FAIL", "REQTMOUT"))
_CONSEQUENCES = frozenset(("GETPID", "MAXPOLL", "SESSTMOUT", "TXNERR"))
"""By these names librdkafka logs failed attempts, and what follows from them during an outage."""
_FATAL, _FATAL_PREFIX = "FATAL", "Fatal error: "
"""The kind of event, and how its text begins, that librdkafka logs once when a client cannot continue."""
_ALL_DOWN = "brokers are down"
_REACHING = ("broker.", "client.", "enable.s", "oauth_cb", "sasl.", "security.", "socket.", "ssl.")
"""How properties begin that say how to get to a broker, and in."""

_log = logging.getLogger("acktree.kafka")
_log.addHandler(logging.NullHandler())
_silent = logging.Logger("acktree.kafka.probe", logging.CRITICAL + 1)


class Outage:
    """Tracks failed attempts to reach one cluster: when to log, and what. Pure; any steady clock will do.

    An attempt that fails makes an outage likely; a cluster that does not answer proves it, and so do attempts
    that keep failing while it answers, as when one of several brokers is away. A client delivers its log
    lines when it is polled, possibly long after the cluster has recovered.

    >>> outage = Outage("kafka:9092")
    >>> outage.failed("refused", 0.0), outage.failed("refused", 0.1)
    (True, False)
    >>> outage.check(2.0, answers=False)
    'no connection to Kafka at kafka:9092 (refused); retrying; further failures are logged once a minute'
    >>> outage.check(30.0, answers=False)
    >>> outage.check(62.0, answers=False)
    'no connection to Kafka at kafka:9092 for 62 s (refused); 2 attempts have failed'
    >>> outage.check(70.0, answers=True)
    >>> outage.check(90.0, answers=True)
    'Kafka at kafka:9092 answers again after 70 s; 2 attempts had failed'
    >>> outage.is_watched
    False
    """

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.is_watched = self.is_proven = self._is_partial = False
        self._reason, self._count = "", 0
        self._began_s = self._failed_s = self._said_s = 0.0
        self._answered_s: float | None = None

    def failed(self, reason: str, now_s: float) -> bool:
        """Count a failed attempt; return whether :meth:`check` has to be called from now on."""
        is_first, self.is_watched = not self.is_watched, True
        if is_first:
            self._count, self._began_s, self._answered_s = 0, now_s, None
        self._reason, self._failed_s = reason, now_s
        self._count += 1
        return is_first

    def abandon(self) -> None:
        """End without a line: no client is left that tries to connect."""
        self.is_watched = self.is_proven = False

    def explains_retry(self) -> bool:
        """Return whether something that is tried again goes without saying; count it."""
        explains = self.is_proven or (self.is_watched and self._answered_s is None)
        self._count += explains
        return explains

    def check(self, now_s: float, answers: bool) -> str | None:
        """Return the line to log, if one is due; ``answers``: whether the cluster has just answered.

        To be called every few seconds as long as ``is_watched``.
        """
        if not answers:
            self._answered_s = None
        elif self._answered_s is None:
            self._answered_s = now_s
        if self._answered_s is not None and now_s - max(self._failed_s, self._answered_s) >= QUIET_S:
            return self._end(self._answered_s)
        if not self.is_proven:
            return self._begin(now_s) if not answers or self._failed_s - self._began_s >= QUIET_S else None
        is_ending = self._answered_s is not None and self._failed_s - self._answered_s < QUIET_S
        if now_s - self._said_s < REMINDER_S or is_ending:
            return None
        self._said_s = now_s
        lasted_s = round(now_s - self._began_s)
        return f"{self._what} for {lasted_s} s ({self._reason}); {self._attempts} have failed"

    def _begin(self, now_s: float) -> str:
        self.is_proven, self._said_s, self._is_partial = True, now_s, self._answered_s is not None
        return f"{self._what} ({self._reason}); retrying; further failures are logged once a minute"

    def _end(self, answered_s: float) -> str | None:
        was_proven, self.is_proven, self.is_watched = self.is_proven, False, False
        if not was_proven:
            return None
        seconds = round((self._failed_s if self._is_partial else answered_s) - self._began_s)
        return f"Kafka at {self._bootstrap} answers again after {seconds} s; {self._attempts} had failed"

    @property
    def _what(self) -> str:
        extent = "a Kafka broker" if self._is_partial else "Kafka"
        return f"no connection to {extent} at {self._bootstrap}"

    @property
    def _attempts(self) -> str:
        return f"{self._count:,} attempt{'' if self._count == 1 else 's'}"


class ClientLog:
    """The ``logger`` of one client: failed attempts become part of an outage, everything else is logged."""

    def __init__(self, settings: Mapping[str, Any], *, is_quiet: bool = False) -> None:
        """``is_quiet``: failed attempts are not logged yet, as the maker of the client gets an error."""
        self._settings, self.is_quiet = settings, is_quiet
        _clients(settings).add(self)

    def log(self, level: int, text: str, *values: object) -> None:
        """Take what librdkafka logs: ``values`` are the kind of event, the client and the details."""
        kind, details = str(values[0]), str(values[-1])
        if kind in _FAILURES or details.endswith(_ALL_DOWN):
            if not self.is_quiet:
                _fail(self._settings, reason_of(details))
        elif kind not in _CONSEQUENCES or not _hold_back():
            _log.log(level, text, *values)
        if kind == _FATAL:
            world.process_state()[_FATAL] = details


def last_fatal_error() -> KafkaError:
    """Return the fatal error that this process logged last, with the code of the name in its log line.

    A log line has no code. Another client's error is taken for that of the caller's where two have a fatal
    error at the same moment.
    """
    text = reason_of(world.process_state().get(_FATAL, "")).removeprefix(_FATAL_PREFIX)
    names = {code: KafkaError(code).str() for code in (*range(-200, 0), *range(1, 200))}
    named = [code for code, name in names.items() if text.startswith(f"{name}: ")]
    code = max(named, key=lambda code: len(names[code]), default=KafkaError._FATAL)
    return KafkaError(
        code, text or "the producer has a fatal error that its callbacks have hidden", fatal=True
    )


def log_retry(log: logging.Logger, text: str, *values: object, action: str) -> None:
    """Warn of something that is tried again, unless an outage explains it."""
    if not _hold_back():
        log.warning(text, *values, extra={"action": action})


def reason_of(details: str) -> str:
    """Return what librdkafka says of a failed attempt, without its thread and state.

    >>> reason_of("[thrd:a:1/2]: a:1/2: Connect to ipv4#1.1.1.1:1 failed: refused (after 0ms in …)")
    'a:1/2: Connect to ipv4#1.1.1.1:1 failed: refused'
    """
    return re.sub(r"^\[thrd:.*?\]: ", "", details).partition(" (after ")[0]


def _clients(settings: Mapping[str, Any]) -> "weakref.WeakSet[ClientLog]":
    """Return the logs of this process's clients of a cluster; that of a client goes with it."""
    of_process = world.process_state().setdefault(ClientLog, {})
    found: weakref.WeakSet[ClientLog] = of_process.setdefault(_cluster(settings), weakref.WeakSet())
    return found


def _cluster(settings: Mapping[str, Any]) -> str:
    return str(settings.get("bootstrap.servers", ""))


def _outages() -> dict[str, Outage]:
    """Return the outages of this process, by bootstrap address."""
    found: dict[str, Outage] = world.process_state().setdefault(Outage, {})
    return found


def _hold_back() -> bool:
    """Return whether an outage explains what is tried again."""
    return any(outage.explains_retry() for outage in list(_outages().values()))


def _fail(settings: Mapping[str, Any], reason: str) -> None:
    bootstrap = _cluster(settings)
    outage = _outages().setdefault(bootstrap, Outage(bootstrap))
    if outage.failed(reason, world.monotonic_s()):
        world.start_thread(lambda: _watch(outage, settings, _clients(settings)), "acktree-outage")


def _watch(outage: Outage, settings: Mapping[str, Any], clients: "weakref.WeakSet[ClientLog]") -> None:
    """Ask the cluster for an answer until nothing fails any more, or no client is left; log what is due."""
    here = world.current()
    probe: AdminClient | None = None
    is_over = False
    while not is_over:
        if not clients:
            outage.abandon()
            return
        probe = probe or _probe(here, settings)
        line = outage.check(here.monotonic_s(), probe is not None and _answers(probe))
        is_over = not outage.is_watched
        if line is not None:
            level, action = (logging.WARNING, "broker_back") if is_over else (logging.ERROR, "broker_away")
            _log.log(level, line, extra={"action": action})
        here.sleep(PROBE_S)


def _probe(here: world.World, settings: Mapping[str, Any]) -> AdminClient | None:
    """Return a client that asks whether the cluster answers, None as long as ``oauth_cb`` has no token."""
    kept = {key: value for key, value in settings.items() if key.startswith(_REACHING)}
    try:
        return here.admin({**kept, "bootstrap.servers": settings["bootstrap.servers"]}, _silent)
    except KafkaException:
        return None


def _answers(probe: AdminClient) -> bool:
    """Return whether the cluster answers, be it that it refuses.

    By its metadata: librdkafka's requests of administrators may abort the process where a broker restarts
    while they wait (librdkafka issues 3663 and 4605).
    """
    try:
        probe.list_topics(timeout=PROBE_S)
    except KafkaException as error:
        return not is_transient(error.args[0])
    return True
