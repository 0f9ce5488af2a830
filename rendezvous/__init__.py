"""Who is in the job: the membership state machine, the server around it, its stores, its client."""

if __name__ != "elastic_launch.rendezvous":
    raise ImportError("import this package as elastic_launch.rendezvous, not as rendezvous: no module may exist twice")
