"""Whole topologies without Kafka, in virtual time."""
