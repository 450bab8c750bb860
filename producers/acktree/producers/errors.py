"""What can go wrong in a worker or spout. Each text says what is wrong and what to do."""

from acktree.schemas.errors import AcktreeError


class Misuse(AcktreeError):
    """A bolt or spout breaks a rule of the library: a mistake in its code, so its process stops."""


class AckedTwice(Misuse):
    """A tuple was acked or failed, and then acked, failed or reset again."""


class EmitAfterAck(Misuse):
    """Something was emitted anchored to a tuple that has been acked or failed."""


class NotInHand(Misuse):
    """The tuple given was not handed out by this collector."""


class WrongTopic(Misuse):
    """The topic named is not among the component's ``emits``, or none is named where there are several."""


class ReservedHeader(Misuse):
    """The header ``acktree`` is the library's own; anchors write it."""


class AlreadyPending(Misuse):
    """A spout emitted a message id that is still pending."""


class DeliveryFailed(AcktreeError):
    """The broker did not take a record for good; the inputs behind it stay uncommitted and are read again."""


class MissingPartition(AcktreeError):
    """A control topic lacks the partition of an acker that the topology has."""


class TransactionAborted(AcktreeError):
    """A transaction was given up; its inputs are read again from the committed offsets."""


class BadHandler(AcktreeError):
    """MODULE:NAME does not lead to a bolt or spout that can do anything."""


class UnknownComponent(AcktreeError):
    """The topology has no bolt or spout of that name."""
