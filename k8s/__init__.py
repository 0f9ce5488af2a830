"""Jobs on Kubernetes: `elastic-job`, the controller of a job, and the watch on its pods."""

if __name__ != "elastic_launch.k8s":
    raise ImportError("import this package as elastic_launch.k8s, not as k8s: no module may exist twice")
