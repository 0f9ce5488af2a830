"""Inside a process of the real Horovod's: its script, and the door that it passes before each of its rings."""
