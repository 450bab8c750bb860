"""Prints what is in the table."""

import os
import sqlite3

if __name__ == "__main__":
    database = sqlite3.connect(os.environ["ORDERS_DATABASE"])
    rows = database.execute(
        "select id, number, customer, article, quantity, cents from lines order by id, number"
    )
    for row in rows:
        print(*row)
