"""Jobs on Kubernetes: the place for the pod watcher, the controller and `elastic-job`."""

if __name__ != "elastic_launch.k8s":
    raise ImportError("import this package as elastic_launch.k8s, not as k8s: no module may exist twice")
