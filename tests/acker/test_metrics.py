"""What the acker reports: a process serves every metric in the docs, and the oldest root is the oldest."""

import re
import urllib.request
from pathlib import Path

from acker.cluster import wait_for
from acker.tester import Tester
from acktree.acker.figures import Figures
from acktree.acker.folding.expiry import AgeLimits
from acktree.core.reports.stats import OLDEST_ROOTS
from deadlines import ANSWER_S

DOCS = Path(__file__).parents[2] / "docs" / "acker.md"
SAMPLE = re.compile(r"^(acktree_acker_[a-z_]+)\{topology=\"[^\"]+\"\} [0-9.e+]+$", re.MULTILINE)


def read(url):
    with urllib.request.urlopen(url, timeout=ANSWER_S) as answer:
        return answer.read().decode()


def ages(by_root):
    """Return the figures of roots, by their ids."""
    return {f"root_age_s.{root:016x}": age_s for root, age_s in by_root.items()}


def test_the_oldest_pending_root_is_found_by_its_init_or_last_reset():
    tester = Tester(AgeLimits.of_seconds(30, 300, 6000)).observe().ack(99, 1)
    tester.wait(1000).init(0xAB, 1).wait(500).init(0xCD, 1).wait(500)
    figures = Figures().oldest({0: tester.partition, 1: Tester().partition})
    assert figures == {"oldest_root_age_s": 1.0, **ages({0xAB: 1.0, 0xCD: 0.5})}
    figures = Figures().oldest({0: tester.reset(0xAB).wait(100).partition})
    assert figures == {"oldest_root_age_s": 0.6, **ages({0xCD: 0.6, 0xAB: 0.1})}


def test_only_the_oldest_roots_of_all_partitions_together_are_reported():
    testers = [Tester(AgeLimits.of_seconds(600, 600, 6000)).observe() for _ in range(3)]
    for number in range(3 * OLDEST_ROOTS):
        for tester in testers:
            tester.wait(10)
        testers[number % 3].init(0x1000 + number, 1)
    figures = Figures().oldest({number: tester.partition for number, tester in enumerate(testers)})
    newest_age_s = 0.01 * (3 * OLDEST_ROOTS - 1)
    oldest = {0x1000 + number: round(newest_age_s - 0.01 * number, 2) for number in range(OLDEST_ROOTS)}
    assert figures == {"oldest_root_age_s": oldest[0x1000], **ages(oldest)}


def test_without_pending_roots_there_is_no_oldest_one():
    nothing = {"oldest_root_age_s": 0.0}
    assert Figures().oldest({}) == Figures().oldest({0: Tester().ack(1, 1).partition}) == nothing


def test_an_acker_process_serves_every_metric_and_reports_its_oldest_root(make):
    cluster = make(ackers=1)
    acker = cluster.start_process("--metrics-port", "0").await_ready()
    url = re.search(r"metrics (http://127\.0\.0\.1:\d+/metrics)", acker.log())[1]
    cluster.init(0xBEEF, 1).init(1, 0).await_acked([1])
    pending = f'\nacktree_acker_pending{{topology="{cluster.name}"}} 1.0\n'
    wait_for(lambda: pending in read(url), "the pending root")
    assert set(SAMPLE.findall(read(url))) == set(SAMPLE.findall(DOCS.read_text()))
    assert ages({0xBEEF: 0.0}).keys() < cluster.last_report().values.keys()
