"""The search: whole systems under random faults, judged by explicit trees."""
