"""Inside a worker: the ring, the state, the data, the step loop."""

if __name__ != "elastic_launch.trainer":
    raise ImportError("import this package as elastic_launch.trainer, not as trainer: no module may exist twice")
