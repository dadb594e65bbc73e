"""The parameter server as state machines without I/O."""
