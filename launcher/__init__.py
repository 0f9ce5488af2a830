"""The agent: starts and supervises the workers of one host, and speaks for them to the server."""

if __name__ != "elastic_launch.launcher":
    raise ImportError("import this package as elastic_launch.launcher, not as launcher: no module may exist twice")
