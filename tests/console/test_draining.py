"""When a spout counts as drained: by what each of its own tasks reports, and by nothing else. Pure."""

import pytest

from acktree.console.flow import draining
from acktree.console.view.reports import Reports
from acktree.core.topology.registry import Published
from console.test_reports import NOW_MS, make_report, reports_of

OBEYS = {"flow_offset": 7, "paused": 1, "pending": 0}


def published(topics: tuple[str, ...], tasks: tuple[int, ...]) -> Published:
    spout = {"topics": topics, "tasks": len(tasks)}
    return Published.model_validate(
        {"name": "t", "version": 1, "spouts": {"in": spout}, "spout_tasks": {"in": tasks}, "slots": ()}
    )


def reports(*tasks: int, **more: int) -> Reports:
    said = {**OBEYS, **more}
    return reports_of(
        *(
            make_report(NOW_MS, role="spout", component="in", instance=f"in@a:{task}", task=task, **said)
            for task in tasks
        )
    )


@pytest.mark.parametrize(
    ("topics", "tasks", "said", "is_drained"),
    [
        ((), (4, 5), (0, 1), True),
        ((), (4, 5), (0, 3), False),
        ((), (4, 5), (0, 1, 3), True),
        (("lines",), (4, 5), (4, 5), True),
        (("lines",), (4, 5), (4, 6), False),
        (("lines",), (4,), (5,), False),
    ],
)
def test_a_task_of_an_older_version_does_not_stand_in_for_another(topics, tasks, said, is_drained):
    (found,) = draining(reports(*said), published(topics, tasks), {"in": 7}, NOW_MS)
    assert found.is_drained is is_drained


def test_pending_records_of_a_task_of_an_older_version_count():
    (found,) = draining(reports(0, 1, pending=2), published((), (4,)), {"in": 7}, NOW_MS)
    assert (found.obeying, found.pending, found.is_drained) == (1, 4, False)


@pytest.mark.parametrize("more", [{"flow_offset": 6}, {"paused": 0}])
def test_a_task_that_reports_under_another_record_is_not_drained(more):
    (found,) = draining(reports(0, **more), published((), (4,)), {"in": 7}, NOW_MS)
    assert not found.is_drained
