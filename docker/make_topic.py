"""Make a source topic unless it is there: python make_topic.py NAME PARTITIONS. acktree never makes one."""

import os
import sys

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

name, partitions = sys.argv[1], int(sys.argv[2])
admin = AdminClient({"bootstrap.servers": os.environ["ACKTREE_BOOTSTRAP_SERVER"]})
try:
    admin.create_topics([NewTopic(name, partitions)])[name].result(30)
except KafkaException as error:
    if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
        sys.exit(f"topic {name} cannot be made: {error.args[0].str()}")
