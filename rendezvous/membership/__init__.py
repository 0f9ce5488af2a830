"""Who is in the job: a pure state machine, events in, effects out."""
