"""Which samples a member takes in a step, and how they are fetched: a cursor, and a loader around it."""
