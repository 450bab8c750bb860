"""Runs a list of checks: each within its own time limit, and none stopping the others.

Invariant: every error of a check becomes an answer of that check; an unknown answer stays unknown.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from acktree.console.doctor.answers import Answer, Conclusion, Finding
from acktree.core import world
from acktree.core.errors import BrokerUnreachable, NotAuthorized
from acktree.core.kafka.errors import is_forbidden, is_outcome_unknown, is_transient
from acktree.producers.kafka.deadline_call import CallTimedOut, call_with_deadline
from acktree.wire.errors import AcktreeError

CHECK_S = 30.0
"""How long one check may take."""


class Unknown(Exception):
    """A check cannot be made, because of the answer to another check."""

    def __init__(self, answer: Answer, reason: str) -> None:
        super().__init__(reason)
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Check:
    """``run`` makes the check; ``advice`` is for a broker that refuses, ``right`` for a missing right.

    ``if_refused`` is the answer if the broker refuses.
    """

    name: str
    asked: str
    run: Callable[[], Conclusion]
    advice: str = ""
    right: str = ""
    if_refused: Answer = Answer.FAILS


def run_checks(checks: Iterable[Check], limit_s: float = CHECK_S) -> Iterator[Finding]:
    """Yield what each check finds, in order; one that takes longer than ``limit_s`` has no answer."""
    for check in checks:
        answer, found, advice = _conclude(check, limit_s)
        yield Finding(check.name, check.asked, answer, found, advice)


def _conclude(check: Check, limit_s: float) -> Conclusion:
    until_s = world.monotonic_s() + limit_s
    try:
        return call_with_deadline(check.run, lambda: world.monotonic_s() < until_s)
    except CallTimedOut:
        return Conclusion(Answer.NO_ANSWER, f"no answer within {limit_s:g} s")
    except Unknown as unknown:
        right = check.right if unknown.answer is Answer.FORBIDDEN else ""
        return Conclusion(unknown.answer, str(unknown), right)
    except KafkaException as error:
        return _of_error(check, error.args[0])
    except (TimeoutError, BrokerUnreachable) as error:
        return Conclusion(Answer.NO_ANSWER, str(error) or "no answer in time")
    except NotAuthorized as error:
        return Conclusion(Answer.FORBIDDEN, str(error), check.right)
    except AcktreeError as error:
        return Conclusion(check.if_refused, str(error), check.advice)


def _of_error(check: Check, error: Any) -> Conclusion:
    text = error.str() if isinstance(error, KafkaError) else str(error)
    if is_forbidden(error):
        return Conclusion(Answer.FORBIDDEN, text, check.right)
    if isinstance(error, KafkaError) and (is_transient(error) or is_outcome_unknown(error)):
        return Conclusion(Answer.NO_ANSWER, text)
    return Conclusion(check.if_refused, text, check.advice)
