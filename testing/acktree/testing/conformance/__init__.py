"""Random client scripts, run against the simulated and a real Kafka; what both show must be equal."""
