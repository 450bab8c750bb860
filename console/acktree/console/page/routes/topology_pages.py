"""Holds all pages of one topology, with their parts: a frame, and a watcher's newest status.

Invariant: its errors show on its own pages, so that one unavailable topology does not disturb another's.
"""

from starlette.applications import Starlette
from starlette.routing import BaseRoute, Route

from acktree.console.page.routes.dead_letter_pages import DeadLetterPages
from acktree.console.page.routes.pending_page import PendingPage
from acktree.console.page.routes.replay_page import ReplayPage
from acktree.console.page.routes.status_page import StatusPages
from acktree.console.page.routes.trace_page import TracePage
from acktree.console.page.serving.access import Access
from acktree.console.page.serving.frame import Frame, PageSettings
from acktree.console.page.serving.watcher import Watcher


class TopologyPages:
    """The pages of one topology, from ``start`` to ``stop``."""

    def __init__(self, settings: PageSettings, access: Access) -> None:
        self.frame = Frame(settings)
        self.watcher = Watcher(settings.bootstrap, settings.topology, settings.user)
        self._access = access

    @property
    def name(self) -> str:
        return self.frame.settings.topology

    def routes(self) -> list[BaseRoute]:
        """Return where each page answers, below the topology's place."""
        status = StatusPages(self.frame, self.watcher)
        pending, trace = PendingPage(self.frame).pending, TracePage(self.frame).trace
        dead_letters, replay = DeadLetterPages(self.frame), ReplayPage(self.frame, self._access).replay
        return [
            Route("/", status.status),
            Route("/status.json", status.twin),
            Route("/health", status.health),
            Route("/pending", pending),
            Route("/pending.json", pending),
            Route("/trace", trace),
            Route("/trace.json", trace),
            Route("/dead-letters", dead_letters.dead_letters),
            Route("/dead-letters.json", dead_letters.dead_letters),
            Route("/dead-letters/{partition}/{offset}.json", dead_letters.dead_letter),
            Route("/dead-letters/{partition}/{offset}", dead_letters.dead_letter),
            Route("/replay", replay, methods=["GET", "POST"]),
        ]

    def make_app(self) -> Starlette:
        """Return the pages as an application to mount beside those of other topologies."""
        return Starlette(routes=self.routes(), exception_handlers=self.frame.error_pages())

    def start(self) -> None:
        self.watcher.start()

    def begin_stop(self) -> None:
        """Ask the watcher to end."""
        self.watcher.begin_stop()

    def stop(self) -> None:
        """End the watcher, wait for it, and close the connection of the pages."""
        self.watcher.stop()
        self.frame.close()
