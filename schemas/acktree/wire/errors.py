"""The base of all errors, and the error for bytes that are not a valid record."""


class AcktreeError(Exception):
    """Base of every error raised on purpose; the command line prints it as one sentence, exit code 2."""


class MalformedRecord(AcktreeError):
    """The bytes are not a valid record: it is rejected as a whole, and named by its coordinates."""
