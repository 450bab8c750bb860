"""Run the wordcount example from docker/compose.yaml, kill an acker on the way, check the account.

    make check-containers                      images from a registry
    make check-containers BASE=my/python       no registry: builds stand-ins for Kafka and Prometheus on BASE

Needs podman with what PROGRAMS names, installs that if it may (root, with apt-get), and podman-compose, which
the project's extra `dev` installs. BUILD_OPTIONS goes to every build, LINES says how many lines of text. The
program takes --no-build (the images are there) and --keep (leave the containers running).
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from acktree.console.demo.progress import ProgressView
from acktree.console.demo.run import FAIL_EVERY, KILL_AT, account, send_text, show, with_small_max_pending
from acktree.console.demo.text import library_lines
from acktree.console.devbroker.jars import broker_jars
from acktree.core.topology.file import load_topology
from acktree.core.topology.publish import apply_topology

HERE = Path(__file__).parent
HOUSE = HERE.parents[1]
KAFKA = "127.0.0.1:29092"
BASE = os.environ.get("BASE", "")
LIMIT_S = 900
STAND_INS = {"KAFKA_IMAGE": "localhost/acktree-kafka", "PROMETHEUS_IMAGE": "localhost/acktree-prometheus"}
PROGRAMS = ("podman", "runc", "iptables", "netavark", "aardvark-dns")
"""Containers, their processes, and their network with its names; Debian's packages are called the same."""
FOLDERS = (*os.get_exec_path(), "/usr/sbin", "/usr/lib/podman", "/usr/libexec/podman")
SERVICES = ("acker", "worker", "spark", "ui", "prometheus")
console = Console()


def run(*command: str | Path, **environment: str) -> str:
    """Run a command; return what it prints."""
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    if done.returncode:
        sys.exit(f"{shlex.join(map(str, command))} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def missing() -> list[str]:
    """Return the programs that are not here."""
    return [name for name in PROGRAMS if shutil.which(name, path=os.pathsep.join(FOLDERS)) is None]


def install_missing() -> None:
    """Install the programs that are not here, if that is possible and allowed; else say which."""
    if (names := missing()) and os.geteuid() == 0 and shutil.which("apt-get"):
        console.print(f"installing {', '.join(names)}", highlight=False)
        run("apt-get", "update", "-qq")
        quietly = {"DEBIAN_FRONTEND": "noninteractive"}
        run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *names, **quietly)
    if names := missing():
        sys.exit(f"not installed: {', '.join(names)}; on Debian: sudo apt-get install {' '.join(names)}")


def build(image: str, dockerfile: Path, context: Path) -> None:
    """Build an image on BASE."""
    console.print(f"building {image}", highlight=False)
    options = shlex.split(os.environ.get("BUILD_OPTIONS", ""))
    base = ["--build-arg", f"BASE={BASE}"] if BASE else []
    run(
        "podman", "build", "-q", "--format", "docker", "-t", image, "-f", dockerfile, *base, *options, context
    )


def build_stand_ins() -> None:
    """Build what a registry would give."""
    with tempfile.TemporaryDirectory() as folder:
        context = Path(folder)
        shutil.copytree(HERE / "kafka", context, dirs_exist_ok=True)
        (context / "libs").mkdir()
        for jar in broker_jars():
            shutil.copy(jar, context / "libs")
        build(STAND_INS["KAFKA_IMAGE"], context / "Dockerfile", context)
    build(STAND_INS["PROMETHEUS_IMAGE"], HERE / "prometheus.Dockerfile", HERE)


def compose(*arguments: str) -> str:
    """Run podman-compose on the project's file."""
    images = STAND_INS if BASE else {}
    file = str(HOUSE / "docker" / "compose.yaml")
    program = [sys.executable, "-m", "podman_compose", "-f", file]
    fail = {"WORDCOUNT_FAIL_EVERY": str(FAIL_EVERY), "ACKTREE_IMAGE": "localhost/acktree"}
    return run(*program, *arguments, **images, **fail)


def containers() -> dict[str, dict[str, object]]:
    """Return what the engine says of each of our containers, by name."""
    names = run(
        "podman", "ps", "-a", "--filter", "label=io.podman.compose.project=acktree", "--format", "{{.Names}}"
    )
    inspected = json.loads(run("podman", "inspect", *names.split())) if names.split() else []
    return {each["Name"]: each for each in inspected}


def remove_the_rest() -> None:
    """Remove what podman-compose leaves: of a scaled service it knows the first container only."""
    if left := list(containers()):
        run("podman", "rm", "--force", *left)


def drive_health_checks(stopping: threading.Event) -> None:
    """Ask each container for its health; podman leaves that to systemd, which is not everywhere."""
    while not stopping.wait(1):
        names = run(
            "podman", "ps", "--filter", "label=io.podman.compose.project=acktree", "--format", "{{.Names}}"
        )
        for name in names.split():
            subprocess.run(["podman", "healthcheck", "run", name], capture_output=True)


def until(holds: Callable[[], object], what: str) -> None:
    """Wait until ``holds()``; give up after LIMIT_S."""
    deadline_s = time.monotonic() + LIMIT_S
    while not holds():
        if time.monotonic() > deadline_s:
            sys.exit(f"waited {LIMIT_S} s for {what}")
        time.sleep(0.5)


def health(name: str) -> str:
    """Return healthy, unhealthy or starting."""
    state = containers()[name]["State"]
    assert isinstance(state, dict)
    return str((state.get("Health") or state.get("Healthcheck") or {}).get("Status"))


def kill(name: str) -> None:
    """Kill a container's process from outside: a crash, not a stop that the engine was asked for."""
    state = containers()[name]["State"]
    assert isinstance(state, dict)
    os.kill(int(state["Pid"]), signal.SIGKILL)


def page(url: str, **headers: str) -> str:
    """Return a page's text, "" while it does not answer."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=5) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def query(expression: str) -> float:
    """Return the value of a Prometheus expression, -1 where it has none."""
    answer = page(f"http://127.0.0.1:9090/api/v1/query?query={urllib.request.quote(expression)}")
    found = json.loads(answer)["data"]["result"] if answer else []
    return float(found[0]["value"][1]) if found else -1


def main() -> None:
    """Build, run, kill, count; exit code 1 where the account does not hold."""
    began_s = time.monotonic()
    install_missing()
    if "--no-build" not in sys.argv:
        build("localhost/acktree", HOUSE / "docker" / "Dockerfile", HOUSE)
        if BASE:
            build_stand_ins()
    stopping = threading.Event()
    threading.Thread(target=drive_health_checks, args=(stopping,), daemon=True).start()
    try:
        start_in_order()
        holds = run_text(began_s)
    finally:
        stopping.set()
        if "--keep" not in sys.argv:
            compose("down", "-v", "-t", "20")
            remove_the_rest()
    sys.exit(0 if holds else 1)


def start_in_order() -> None:
    """Start what others wait for first: older podmans know neither conditions nor chains of them."""
    up = ("up", "-d", "--no-build", "--no-deps")
    compose(*up, "kafka")
    until(lambda: health("acktree_kafka_1") == "healthy", "Kafka")
    compose(*up, "topology")
    until(
        lambda: "Exited (0)" in run("podman", "ps", "-a", "--filter", "name=acktree_topology"), "the topology"
    )
    compose(*up, "--scale", "acker=2", *SERVICES)


def run_text(began_s: float) -> bool:
    """Send the text, kill an acker, and return whether the account holds."""
    topology = load_topology(HOUSE / "examples" / "wordcount" / "topology.toml")
    roles = [name for name in containers() if name.split("_")[1] in ("acker", "worker", "spark", "ui")]
    until(lambda: all(health(name) == "healthy" for name in roles), "containers to be healthy")
    console.print(f"healthy: {', '.join(sorted(roles))}", highlight=False)
    text = list(library_lines(int(os.environ.get("LINES", "20000"))))
    apply_topology(KAFKA, with_small_max_pending(topology, len(text)), {})
    sent = send_text(KAFKA, text)
    lines, started_s = len(sent.lines), time.monotonic()
    with ProgressView(console, KAFKA, topology.stats_topic, lines) as watch:
        killed = False
        deadline_s = time.monotonic() + LIMIT_S
        while watch.counts["completed"] < lines and time.monotonic() < deadline_s:
            watch.tick()
            if not killed and watch.counts["completed"] >= KILL_AT * lines:
                killed = True
                kill("acktree_acker_1")
                watch.say(
                    f"killed container acktree_acker_1 at {watch.counts['completed']:,} completed lines"
                )
        seconds = time.monotonic() - started_s
        watch.tick(5.0)
        counts = watch.counts
    console.print(
        f"acktree_acker_1 has been started again {containers()['acktree_acker_1']['RestartCount']} time(s)"
    )
    assert (
        query("acktree_spout_completed_total") > 0
        or until(lambda: query("sum(acktree_spout_completed_total)") == lines, "Prometheus to see every line")
        is None
    )
    console.print(
        f"Prometheus: {query('sum(up)'):g} targets up, {query('count(ALERTS)'):g} alerts (-1: none)"
    )
    token = {"Authorization": "Bearer wordcount-on-this-machine"}
    assert "wordcount" in page("http://127.0.0.1:9461/", **token), "the status page does not answer"
    assert "lines" not in page("http://127.0.0.1:9461/"), "the status page answers without a token"
    with tempfile.TemporaryDirectory() as folder:
        run("podman", "stop", "-t", "20", "acktree_worker_1")
        run("podman", "cp", "acktree_worker_1:/var/lib/acktree/.", folder)
        lines_of_account = account(KAFKA, topology, sent, counts, Path(folder) / "words.sqlite")
    show(console, lines_of_account, lines, seconds, time.monotonic() - began_s)
    return all(line.holds for line in lines_of_account)


if __name__ == "__main__":
    main()
