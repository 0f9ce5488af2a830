"""A ring of our own, over sockets to the two neighbours: collectives on CPU memory of any framework, without one."""
