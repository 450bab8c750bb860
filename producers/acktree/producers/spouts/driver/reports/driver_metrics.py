"""Serves the metrics of a driver where it runs: in a Python process of Spark, not the application's.

Invariant: nothing is served unless a port is set; without prometheus-client a port is an error.
"""

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from acktree.core.errors import NoMetrics, how_to_install
from acktree.core.reports.stats import Report
from acktree.producers.spouts.driver.spout_options import SpoutOptions

if TYPE_CHECKING:
    from acktree.core.reports.metrics_server import Served


def serve_driver(options: SpoutOptions, read: Callable[[], Iterable[Report]]) -> "Served | None":
    """Serve what the driver reports, where the options ask for it. Raises NoMetrics."""
    if options.metrics_port is None:
        return None
    try:
        from acktree.core.reports.metrics_server import serve_reports
    except ModuleNotFoundError as missing:
        raise NoMetrics(f"metrics need prometheus_client: {how_to_install('metrics')}") from missing
    served = serve_reports(options.topology, read, options.metrics_port, options.metrics_host)
    print(f"metrics {served.url}", file=sys.stderr, flush=True)
    return served
