"""Requests of spans: what can never be sent is refused, and keeps nothing else back."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from acktree.console.traces import otlp
from acktree.console.traces.otlp import OtlpSender, Sent
from acktree.console.traces.spans import Span
from console.otlp_receiver import OtlpReceiver


@pytest.mark.parametrize("bad", [{"start_ms": -1}, {"end_ms": 10**14}])
def test_a_time_that_no_span_can_have_keeps_no_tree_back(
    bad: dict[str, Any], receiver: Callable[..., OtlpReceiver]
):
    taken = receiver()
    sender = OtlpSender("t", taken.url, timeout_s=2)
    span = Span("s", "n", "1" * 32, "2" * 16, "", True, 1, 2)
    assert sender.send([replace(span, **bad)]) is Sent.SENT
    sender.close()
    (sent,) = taken.spans
    assert sent.start_ns <= sent.end_ns


def test_a_request_that_is_too_large_is_refused_so_that_it_is_sent_in_parts(
    receiver: Callable[..., OtlpReceiver], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(otlp, "MAX_REQUEST_BYTES", 2_000)
    sender = OtlpSender("t", receiver().url, timeout_s=2)
    span = Span("s", "n" * 1_000, "1" * 32, "2" * 16, "", True, 1, 2)
    assert sender.send([span, span, span]) is Sent.REFUSED
    assert sender.send([span]) is Sent.SENT
    sender.close()
