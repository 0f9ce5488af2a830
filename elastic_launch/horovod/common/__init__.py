"""What Horovod's scripts import from `horovod.common`."""
