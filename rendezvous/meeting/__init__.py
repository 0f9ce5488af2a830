"""The meeting point of a generation: a small key-value store, served by an agent, for its workers."""
