"""The real Horovod's elastic workers: what horovodrun's driver is to them, this agent is, for those on its host."""
