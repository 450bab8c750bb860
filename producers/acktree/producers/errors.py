"""The errors of workers and spouts. Each message says what is wrong and what to do."""

from acktree.core import world
from acktree.core.user_code import text_of
from acktree.wire.errors import AcktreeError

MAX_SHOWN_CHARS = 80


class Misuse(AcktreeError):
    """A bolt or spout breaks a rule of the library: a bolt's tuple fails with it, a spout's process stops."""

    is_logged = False


class AckedTwice(Misuse):
    """A tuple that was already acked or failed was acked, failed or reset."""


class EmitAfterAck(Misuse):
    """Something was emitted anchored to a tuple that has been acked or failed."""


class NotInHand(Misuse):
    """The tuple given was not handed out by this collector."""


class WrongTopic(Misuse):
    """The topic is not in the component's ``emits``, or was omitted although there are several."""


class NotSerializable(Misuse):
    """An emitted value is not bytes, str or None, and no Serde can write it; or its timestamp is invalid."""


class WrongThread(Misuse):
    """A collector was called by a thread other than the one that calls ``execute``."""


class ReservedHeader(Misuse):
    """The header ``acktree`` is reserved for the library, which writes the anchors to it."""


class InvalidRetry(Misuse):
    """A delay is negative, too long or not a number, or is given for a tuple that is never retried."""


class AlreadyPending(Misuse):
    """A spout emitted a message id that is still pending."""


class DeliveryFailed(AcktreeError):
    """The broker permanently rejected a record; its inputs stay uncommitted and are read again."""


class Unwritable(AcktreeError):
    """A topic would never accept a record: the tuples it was emitted for fail, the others are unaffected."""


class TooLarge(Unwritable):
    """A record is larger than its topic accepts; a bolt's tuples fail, a spout's ``emit`` raises it."""


class MissingKey(Unwritable):
    """A record for a compacted topic has no key; a bolt's tuples fail, a spout's ``emit`` raises it."""


class InvalidTimestamp(Unwritable):
    """A record's timestamp is further from now than its topic accepts; handled like TooLarge."""


class OutputTooSlow(Unwritable):
    """What was emitted for a tuple is more than passes to the broker in one transaction: the tuple fails."""


class MissingPartition(AcktreeError):
    """A control topic has no partition for one of the topology's ackers."""


class TransactionAborted(AcktreeError):
    """A transaction was aborted; its inputs are read again from the committed offsets."""


class BadHandler(AcktreeError):
    """MODULE:NAME is not a bolt or spout that can run."""


class MissingExtra(AcktreeError):
    """A part of the library needs a package that is not installed; the message names the extra to install."""


class RetryLater(AcktreeError):
    """Raise it in a bolt: the tuple fails, and its source record is emitted again after ``after_s`` seconds.

    The delay takes the place of the spout's back-off; the emission counts as an attempt like any other. In a
    batch it fails all tuples that were not failed before.
    """

    def __init__(self, after_s: float, reason: str = "") -> None:
        super().__init__(reason or f"again in {after_s} s")
        self.after_s = after_s


class Reject(AcktreeError):
    """Raise it in a bolt: the tuple fails, and its source record becomes a dead letter without a retry."""


class NotDeserializable(Reject):
    """A value does not match the bolt's ``reads_as``: its record becomes a dead letter without a retry."""


class UnknownSchema(AcktreeError):
    """The schema registry lacks or refuses a value's schema: the tuple fails, its record is emitted again."""


class RegistryUnavailable(AcktreeError):
    """The schema registry does not answer: no tuple fails; the worker stops, its inputs are read again."""


class ExecuteHangs(AcktreeError):
    """``execute`` ran far beyond its limit without returning: its tuple failed, and the worker stops."""


class UnknownComponent(AcktreeError):
    """The topology has no bolt or spout of that name."""


def reason_of(error: BaseException) -> str:
    """Return the reason that is sent to the spout: the exception's type and text.

    >>> reason_of(ValueError("no such word")), reason_of(Reject("no number"))
    ('ValueError: no such word', 'no number')
    """
    text = text_of(error)
    return text if type(error) in (RetryLater, Reject) else f"{type(error).__name__}: {text}"


def reason_given(given: object) -> str:
    """Return the reason that a bolt gives with a fail: text, an exception, or anything: the fail must go out.

    >>> reason_given("no such word"), reason_given(ValueError("no such word")), reason_given(None)
    ('no such word', 'ValueError: no such word', '')
    """
    if isinstance(given, str):
        return given
    if isinstance(given, BaseException):
        return reason_of(given)
    return "" if given is None else shown(given)


def is_of_tuple(error: BaseException) -> bool:
    """Return whether an exception is a fault of the tuple during which it is raised, not for the process.

    An extension in Rust that panics raises no Exception, nor does an await that was cancelled.
    """
    for_process = (KeyboardInterrupt, SystemExit, GeneratorExit, world.ProcessEnds, MissingExtra)
    return not isinstance(error, for_process)


def shown(wrong: object) -> str:
    """Return how an error shows a wrong argument: its ASCII form, shortened.

    >>> shown(7), len(shown("a" * 100)), shown(10**5000)
    ('7', 81, 'a value of int, whose repr raised ValueError')
    """
    try:
        text = ascii(wrong)
    except Exception as error:
        text = f"a value of {type(wrong).__name__}, whose repr raised {type(error).__name__}"
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"
