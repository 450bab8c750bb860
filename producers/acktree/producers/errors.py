"""What can go wrong in a worker or spout. Each text says what is wrong and what to do."""

from acktree.schemas.errors import AcktreeError


class Misuse(AcktreeError):
    """A bolt or spout breaks a rule of the library: a bolt's tuple fails with it, a spout's process stops."""

    is_logged = False


class AckedTwice(Misuse):
    """A tuple was acked or failed, and then acked, failed or reset again."""


class EmitAfterAck(Misuse):
    """Something was emitted anchored to a tuple that has been acked or failed."""


class NotInHand(Misuse):
    """The tuple given was not handed out by this collector."""


class WrongTopic(Misuse):
    """The topic named is not among the component's ``emits``, or none is named where there are several."""


class NotSerializable(Misuse):
    """What is emitted has no bytes: neither bytes, str nor None, text without a UTF-8 form, or no time."""


class WrongThread(Misuse):
    """A collector was called by another thread than the one that calls ``execute``."""


class ReservedHeader(Misuse):
    """The header ``acktree`` is the library's own; anchors write it."""


class AlreadyPending(Misuse):
    """A spout emitted a message id that is still pending."""


class DeliveryFailed(AcktreeError):
    """The broker did not take a record for good; the inputs behind it stay uncommitted and are read again."""


class Unwritable(AcktreeError):
    """A record that its topic never takes: the tuples it was emitted for fail, and the others go on."""


class TooLarge(Unwritable):
    """A record is larger than its topic takes; a bolt's tuples fail, a spout's ``emit`` raises it."""


class MissingKey(Unwritable):
    """A record for a compacted topic has no key; a bolt's tuples fail, a spout's ``emit`` raises it."""


class InvalidTimestamp(Unwritable):
    """A record's time is further from now than its topic takes; handled as a record that is too large is."""


class MissingPartition(AcktreeError):
    """A control topic lacks the partition of an acker that the topology has."""


class TransactionAborted(AcktreeError):
    """A transaction was given up; its inputs are read again from the committed offsets."""


class BadHandler(AcktreeError):
    """MODULE:NAME does not lead to a bolt or spout that can do anything."""


class MissingExtra(AcktreeError):
    """A part of the library needs a package that is not installed; the text names the extra that has it."""


class UnknownComponent(AcktreeError):
    """The topology has no bolt or spout of that name."""


def reason_of(error: BaseException) -> str:
    """Return what travels to the spout: the exception's type and text.

    >>> reason_of(ValueError("no such word"))
    'ValueError: no such word'
    """
    try:
        text = str(error)
    except Exception as no_text:
        text = f"no text, its __str__ raised {type(no_text).__name__}"
    return f"{type(error).__name__}: {text}"
