"""Simulates confluent's Message: what a consumer returns and a producer reports."""

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError

from acktree.testing.kafka.broker.log import Header, StoredRecord


class SimulatedMessage:
    """A record, or an error that concerns a partition."""

    __slots__ = ("_error", "_headers", "_offset", "_partition", "_record", "_topic")

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int | None,
        record: StoredRecord | None = None,
        error: KafkaError | None = None,
    ) -> None:
        self._topic, self._partition, self._offset = topic, partition, offset
        self._record, self._error = record, error
        self._headers: list[Header] | None = None

    def error(self) -> KafkaError | None:
        """See confluent_kafka.Message, as all below."""
        return self._error

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int | None:
        return self._offset

    def key(self) -> bytes | None:
        return None if self._record is None else self._record.key

    def value(self) -> bytes | None:
        if self._record is not None:
            return self._record.value
        return None if self._error is None else self._error.str().encode()

    def headers(self) -> list[Header] | None:
        """Raise UnicodeDecodeError for a name with lone surrogates, which stand for bytes that are not UTF-8.

        The real client then returns a broken list as well, and a second look at it ends the process.
        """
        if self._headers is not None or self._record is None:
            return self._headers
        for name, _ in self._record.headers:
            if not name.isascii():
                name.encode("utf-8", "surrogateescape").decode("utf-8")
        return list(self._record.headers) or None

    def set_headers(self, headers: list[Header]) -> None:
        self._headers = headers

    def timestamp(self) -> tuple[int, int]:
        if self._record is None:
            return TIMESTAMP_NOT_AVAILABLE, -1
        return self._record.timestamp_type, self._record.timestamp_ms

    def leader_epoch(self) -> int | None:
        return None if self._record is None else self._record.epoch

    def latency(self) -> float | None:
        return None

    def __len__(self) -> int:
        return len(self.value() or b"")
