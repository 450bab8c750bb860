"""Run Kafka with the settings that the environment holds as KAFKA_SETTING_WITH_UNDERSCORES."""

import os
import subprocess
import sys
from pathlib import Path

DATA = Path(os.environ.get("KAFKA_LOG_DIRS", "/tmp/kafka-data"))
SETTINGS = Path("/tmp/server.properties")
JAVA = ["java", "-Xmx768m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", "/opt/kafka/libs/*"]
CLUSTER_ID = "c3RhbmQtaW4ta2Fma2EtMQ"


def main() -> None:
    """Format the data folder once, then become Kafka."""
    settings = {
        name.removeprefix("KAFKA_").lower().replace("_", "."): value
        for name, value in os.environ.items()
        if name.startswith("KAFKA_")
    }
    settings["log.dirs"] = str(DATA)
    SETTINGS.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    if not (DATA / "meta.properties").exists():
        tool = [
            "kafka.tools.StorageTool",
            "format",
            "--ignore-formatted",
            "-t",
            CLUSTER_ID,
            "-c",
            str(SETTINGS),
        ]
        if subprocess.run([*JAVA, *tool]).returncode:
            sys.exit("Kafka's storage tool refused the settings")
    os.execvp(JAVA[0], [*JAVA, "kafka.Kafka", str(SETTINGS)])


if __name__ == "__main__":
    main()
