"""Draw the diagrams of the docs as SVG files: python docs/diagrams.py

Each has a title and a description for screen readers, colours for light and dark screens, and a ground of its
own, as pages of either kind show it. All are narrow, so that their text can be read on a phone.
"""

import runpy
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path

IMAGES = Path(__file__).parent / "images"
WIDTH = 520
STYLE = """
text { font: 15px system-ui, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; fill: #1d1f24 }
.small { font-size: 13px } .dim { fill: #565b66 } .bold { font-weight: 600 }
.mono { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: 14px }
.middle { text-anchor: middle } .end { text-anchor: end }
.ground { fill: #ffffff; stroke: #d5d8de } .lane { stroke: #d5d8de; stroke-width: 2 }
.process { fill: #e3f0fd; stroke: #1c66b8 } .topic { fill: #fdf1dd; stroke: #b26a00 }
.store { fill: #e5f4e7; stroke: #2c7a34 } .node { fill: #1c66b8 } .on-node { fill: #ffffff; font-weight: 600 }
.line { fill: none; stroke: #565b66; stroke-width: 1.6; marker-end: url(#head) }
.dashed { stroke-dasharray: 5 4 } .head { fill: #565b66 }
.axis { stroke: #d5d8de } .curve { fill: none; stroke-width: 2.4 } .ours { stroke: #1c66b8 }
.storm { stroke: #b26a00 } .able { stroke: #8a909c; stroke-width: 1.4; stroke-dasharray: 5 4 }
@media (prefers-color-scheme: dark) {
  text { fill: #e9eaee } .dim { fill: #aab0bc } .ground { fill: #16181d; stroke: #3a3f4a }
  .lane { stroke: #3a3f4a } .process { fill: #14304d; stroke: #6cb1f5 }
  .topic { fill: #3a2a12; stroke: #f0b353 } .store { fill: #16331a; stroke: #77c980 }
  .node { fill: #6cb1f5 } .on-node { fill: #10151c }
  .line { stroke: #aab0bc } .head { fill: #aab0bc } .axis { stroke: #3a3f4a }
  .ours { stroke: #6cb1f5 } .storm { stroke: #f0b353 }
}
"""


@dataclass
class Diagram:
    """One picture; places are in pixels from its top left corner."""

    name: str
    title: str
    about: str
    height: int
    parts: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, text: str, look: str = "") -> None:
        """Write one line; ``look`` is its classes."""
        self.parts.append(f'<text x="{x:g}" y="{y:g}" class="{look}">{escape(text)}</text>')

    def box(self, kind: str, x: float, y: float, w: float, h: float, *lines: str) -> None:
        """Draw a process, topic or store with centred lines, the first of them bold."""
        radius = h / 2 if kind == "topic" and h <= 50 else 7
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{radius:g}" class="{kind}"/>'
        )
        first = y + h / 2 + 5 - 9 * (len(lines) - 1)
        for number, line in enumerate(lines):
            self.text(x + w / 2, first + 18 * number, line, "middle small" if number else "middle bold")

    def arrow(self, *points: tuple[float, float], dashed: bool = False) -> None:
        """Draw a line through points, with a head at the last."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" class="line{" dashed" * dashed}"/>')

    def node(self, x: float, y: float, text: str) -> None:
        """Draw a number in a disc."""
        self.parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="12" class="node"/>')
        self.text(x, y + 5, text, "middle small on-node")

    def legend(self, y: float, kinds: Sequence[tuple[str, str]]) -> None:
        """Say what the colours mean."""
        x = 20
        for kind, meaning in kinds:
            self.parts.append(f'<rect x="{x}" y="{y - 11}" width="18" height="13" rx="4" class="{kind}"/>')
            self.text(x + 25, y, meaning, "small dim")
            x += 45 + 8 * len(meaning)

    def svg(self) -> str:
        """Return the file."""
        size = f'width="{WIDTH}" height="{self.height}" viewBox="0 0 {WIDTH} {self.height}"'
        head = '<path d="M0,0 L9,4.5 L0,9 z" class="head"/>'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title about">',
                f'<title id="title">{escape(self.title)}</title>',
                f'<desc id="about">{escape(self.about)}</desc>',
                f"<style>{STYLE}</style>",
                '<defs><marker id="head" viewBox="0 0 9 9" refX="8" refY="4.5" markerWidth="7" '
                f'markerHeight="7" orient="auto">{head}</marker></defs>',
                f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{self.height - 1}" rx="10" '
                'class="ground"/>',
                *self.parts,
                "</svg>\n",
            ]
        )


KAFKA_AND_US = (("topic", "Kafka topic"), ("process", "process"))


def overview() -> Diagram:
    """Draw README's one picture."""
    made = Diagram(
        "overview",
        "How acktree works",
        "Lines go from a source topic through a Spark stage to the topic words and on to a bolt. Spark "
        "sends an init and the bolt an ack to the ackers by way of control topics. The ackers report a "
        "finished tree to the ledger in the Spark driver, which commits the source offset.",
        372,
    )
    made.box("topic", 15, 40, 92, 44, "lines")
    made.box("process", 139, 28, 112, 68, "Spark", "spout, stage")
    made.box("topic", 283, 40, 92, 44, "words")
    made.box("process", 407, 28, 98, 68, "bolt", "worker")
    made.arrow((107, 62), (137, 62))
    made.arrow((251, 62), (281, 62))
    made.arrow((375, 62), (405, 62))
    made.text(478, 120, "…", "middle")
    made.box("topic", 283, 164, 222, 44, "T.ack-init, T.ack")
    made.arrow((226, 96), (226, 186), (281, 186))
    made.text(234, 150, "init", "small")
    made.arrow((440, 96), (440, 162))
    made.text(448, 150, "ack, fail", "small")
    made.box("process", 328, 256, 132, 52, "ackers", "XOR per root")
    made.arrow((394, 208), (394, 254))
    made.box("topic", 139, 260, 132, 44, "T.spout-0")
    made.arrow((328, 282), (273, 282))
    made.text(300, 272, "acked", "small middle")
    made.box("process", 139, 164, 72, 44, "ledger")
    made.arrow((175, 260), (175, 210))
    made.arrow((175, 164), (175, 98))
    made.text(168, 137, "replay", "small end")
    made.arrow((139, 186), (61, 186), (61, 86))
    made.text(69, 205, "commit", "small")
    made.text(69, 221, "offset", "small")
    made.legend(348, KAFKA_AND_US)
    return made


def tree() -> Diagram:
    """Draw how the value of a root comes to zero."""
    made = Diagram(
        "tree",
        "How a tree completes",
        "A line becomes two words, and the first word becomes a count. Every tuple has a random edge. "
        "The acker XORs the init, which has the edges of both words, and an ack of each tuple, which "
        "has its own edge and those of what was emitted from it. Every edge comes twice, so the value "
        "is zero when all tuples are acked.",
        424,
    )
    made.box("topic", 200, 18, 120, 40, "line")
    made.box("topic", 90, 100, 120, 40, "word 1")
    made.box("topic", 310, 100, 120, 40, "word 2")
    made.box("topic", 90, 182, 120, 40, "count")
    made.arrow((235, 58), (165, 98))
    made.arrow((285, 58), (355, 98))
    made.arrow((150, 140), (150, 180))
    made.text(180, 80, "a", "bold end")
    made.text(340, 80, "b", "bold")
    made.text(160, 166, "c", "bold")
    made.text(280, 190, "a, b, c: random edges of 64 bits,", "small dim")
    made.text(280, 208, "one for each emitted tuple", "small dim")
    rows = [
        ("init of the line", "a ⊕ b", "a ⊕ b"),
        ("ack of word 1", "a ⊕ c", "b ⊕ c"),
        ("ack of word 2", "b", "c"),
        ("ack of the count", "c", "0"),
    ]
    for x, head in ((25, "message"), (200, "XORed in"), (320, "value at the acker")):
        made.text(x, 262, head, "small dim")
    for number, (message, edges, value) in enumerate(rows):
        y = 290 + 29 * number
        made.parts.append(f'<line x1="20" y1="{y - 20}" x2="500" y2="{y - 20}" class="lane"/>')
        made.text(25, y, message)
        made.text(200, y, edges, "mono")
        made.text(320, y, value, "mono bold" if value == "0" else "mono")
    made.text(342, 377, "done: commit the offset", "small")
    made.text(25, 408, "In any other order the value is 0 at the end as well, and not before.", "small dim")
    return made


def state() -> Diagram:
    """Draw where the state of each process is durable."""
    made = Diagram(
        "state",
        "Where the state is",
        "Processes keep their state in memory only; it is durable in Kafka and in Spark's checkpoint. "
        "Ackers read the control topics again from their committed cut. A spout's driver in Spark reads its "
        "state topic, the result topics from the positions in that state, and the checkpoint's last batch. "
        "The offsets of its group are a view that it writes. A Spark task finds its batch commit record. A "
        "worker reads again from its committed offset. All of them read the topology from its topic.",
        534,
    )
    made.text(92, 30, "in memory", "middle small dim")
    made.text(368, 30, "durable", "middle small dim")
    rows = [
        ("acker", "open trees", "topic", "control topics", "from the group's offset, the cut"),
        ("driver", "done, failed, due", "topic", "T.state-SPOUT", "all of it, in one transaction a commit"),
        ("driver", "newer results", "topic", "T.spout-TASK", "from the positions in the state"),
        ("driver", "the batch", "store", "Spark's checkpoint", "what the current batch emits"),
        ("driver", "the frontier", "topic", "offsets of the spout's group", "a view, for Kafka's tools"),
        (
            "task",
            "what is written",
            "topic",
            "offsets of T.COMPONENT.stage",
            "a batch commit record per task",
        ),
        (
            "worker",
            "tuples in hand",
            "topic",
            "offset of the bolt's group",
            "behind acks that are in the log",
        ),
    ]
    for number, (process, what, kind, place, about) in enumerate(rows):
        y = 44 + 62 * number
        made.box("process", 20, y, 144, 48, process, what)
        made.box(kind, 230, y, 275, 48, place, about)
        if what == "the frontier":
            made.arrow((164, y + 24), (228, y + 24))
        else:
            made.arrow((228, y + 24), (166, y + 24), dashed=True)
    made.text(25, 490, "- - ►  read again after a crash     ─►  only shown", "small dim")
    made.legend(517, (("process", "process"), ("topic", "in Kafka"), ("store", "in files")))
    return made


def record() -> Diagram:
    """Draw the steps of ARCHITECTURE's life of a record."""
    made = Diagram(
        "record",
        "Life of a record",
        "Twelve steps in three lanes: driver, tasks and acker. The driver plans a batch and Spark logs "
        "it. Tasks read the offsets, transform the rows, give them edges, write the tuples, prove that "
        "their input is whole, send inits and commit the transaction. The acker reports results. The "
        "driver reads them, updates the ledger and commits its state, then the source offset.",
        504,
    )
    lanes = (("driver", 40), ("tasks", 105), ("acker", 170))
    for name, x in lanes:
        made.text(x, 30, name, "middle small dim")
        made.parts.append(f'<line x1="{x}" y1="42" x2="{x}" y2="490" class="lane"/>')
    steps = [
        (40, "plan: replays first, then new offsets"),
        (40, "Spark logs the batch"),
        (105, "read exactly these offsets"),
        (105, "run your transform"),
        (105, "a random edge per tuple and root"),
        (105, "write the tuples in a transaction"),
        (105, "prove that all rows came"),
        (105, "one init per root"),
        (105, "commit, with a batch commit record"),
        (170, "fold to zero, and report it"),
        (40, "read the result"),
        (40, "mark done, or plan the replay"),
        (40, "commit the state, show the offset"),
    ]
    places = [(x, 60 + 35 * number) for number, (x, _) in enumerate(steps)]
    for (x1, y1), (x2, y2) in pairwise(places):
        if x1 == x2:
            continue  # the lane leads on
        side = 13 if x2 > x1 else -13
        made.arrow((x1, y1 + 12), (x1, y2), (x2 - side, y2))
    numbers = [*map(str, range(1, 10)), "⊕", "10", "11", "12"]
    for number, (x, y), (_, text) in zip(numbers, places, steps, strict=True):
        made.node(x, y, number)
        made.text(198, y + 5, text)
    return made


def roles() -> Diagram:
    """Draw which processes run, and how many."""
    made = Diagram(
        "roles",
        "Processes of a topology",
        "All processes talk to Kafka only. Above it are one Spark application per spout, with a driver "
        "and executors, and as many workers per bolt as its topics have partitions. Below it are as "
        "many ackers as ackers says at most, one status page, and topology apply, which runs once per "
        "change.",
        420,
    )
    made.box(
        "process", 20, 20, 230, 92, "spark run", "one per spout, or Spark bolt:", "a driver and its executors"
    )
    made.box(
        "process",
        270,
        20,
        230,
        92,
        "bolt run, spout run",
        "workers: at most one per",
        "partition of a bolt's topics",
    )
    made.box("topic", 20, 160, 480, 76, "Kafka", "source topics, tuples, control topics, T.topology, T.stats")
    made.box("process", 20, 284, 150, 92, "acker run", "at most as many", "as ackers says")
    made.box("process", 185, 284, 150, 92, "ui", "one: status page,", "metrics, alerts")
    made.box("process", 350, 284, 150, 92, "topology apply", "once per change;", "then it ends")
    for x in (135, 385):
        made.arrow((x - 14, 112), (x - 14, 158))
        made.arrow((x + 14, 160), (x + 14, 114))
    for x in (95, 260):
        made.arrow((x - 14, 284), (x - 14, 238))
        made.arrow((x + 14, 236), (x + 14, 282))
    made.arrow((425, 284), (425, 238))
    made.legend(404, (("topic", "Kafka"), ("process", "acktree …, one container each")))
    return made


def tutorial() -> Diagram:
    """Draw the topology of the tutorial."""
    made = Diagram(
        "tutorial",
        "The topology of the tutorial",
        "The topic orders is read by the Spark stage parse_orders, which emits the topic order-lines. "
        "The bolt price reads it and emits priced-lines, which the bolt store writes to SQLite. What "
        "fails three times is on shop.dead-letter.",
        336,
    )
    made.box("topic", 20, 28, 130, 44, "orders")
    made.box("process", 195, 20, 130, 60, "Spark", "parse_orders.py")
    made.box("topic", 370, 28, 130, 44, "order-lines")
    made.arrow((150, 50), (193, 50))
    made.arrow((325, 50), (368, 50))
    made.box("topic", 15, 128, 162, 44, "shop.dead-letter")
    made.arrow((260, 80), (260, 150), (179, 150), dashed=True)
    made.text(216, 170, "failed", "small middle")
    made.text(220, 186, "three times", "small middle")
    made.box("process", 370, 120, 130, 60, "bolt price", "price_lines.py")
    made.arrow((435, 72), (435, 118))
    made.box("topic", 370, 228, 130, 44, "priced-lines")
    made.arrow((435, 180), (435, 226))
    made.box("process", 195, 220, 130, 60, "bolt store", "store_lines.py")
    made.arrow((370, 250), (327, 250))
    made.box("store", 20, 228, 130, 44, "SQLite")
    made.arrow((195, 250), (152, 250))
    made.legend(318, (*KAFKA_AND_US, ("store", "table")))
    return made


def goodput() -> Diagram:
    """Draw what a bolt that was slow for two minutes does afterwards."""
    model = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "goodput.py"))
    return Diagram(
        "goodput",
        "Goodput of a bolt that is slow for two minutes",
        "100 records a second arrive at a bolt that does 200 a second, and 20 from the first minute to the "
        "third. Under Storm's rule its goodput falls to zero and stays there. Under acktree's it always is "
        "what the bolt can do, until the queue is worked off.",
        270,
        ['<text x="20" y="30" class="bold">Records done a second</text>', *model["parts"]()],
    )


DIAGRAMS = (overview, tree, state, record, roles, tutorial, goodput)

if __name__ == "__main__":
    for draw in DIAGRAMS:
        drawn = draw()
        (IMAGES / f"{drawn.name}.svg").write_text(drawn.svg(), encoding="utf-8")
