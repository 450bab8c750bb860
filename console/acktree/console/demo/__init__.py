"""The demo: a whole topology on this machine, with a real broker, real text and a kill in between."""
