"""The base of all errors, and what is raised for bytes that are no valid record."""


class AcktreeError(Exception):
    """Base of every error raised on purpose; the command line prints it as one sentence, exit code 2."""


class MalformedRecord(AcktreeError):
    """The bytes are not a valid record: rejected as a whole, with topic, partition and offset."""
