"""What becomes of what the workers, and the agent, write: on the console, line by line, with a prefix; in files, as it is.

Nothing here may ever block the agent, or stop a worker for longer than it must.
"""
