"""Creates the topic and sends four orders: two that are good, and two that are not."""

import json
import os

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

ORDERS = [
    {"id": "A1", "customer": "Ada", "lines": [{"article": "tea", "quantity": 2}]},
    {
        "id": "A2",
        "customer": "Ben",
        "lines": [{"article": "cup", "quantity": 1}, {"article": "coffee", "quantity": 3}],
    },
    {"id": "A3", "customer": "Eve", "lines": [{"article": "gold", "quantity": 1}]},
]

if __name__ == "__main__":
    broker = {"bootstrap.servers": os.environ["ACKTREE_BOOTSTRAP_SERVER"]}
    admin = AdminClient(broker)
    admin.create_topics([NewTopic("orders", 2)])["orders"].result()
    producer = Producer(broker)
    for order in ORDERS:
        producer.produce("orders", json.dumps(order), order["id"])
    producer.produce("orders", "no JSON at all")
    producer.flush()
