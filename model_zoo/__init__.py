"""Complete training scripts on real data."""

if __name__ != "elastic_launch.model_zoo":
    raise ImportError("import this package as elastic_launch.model_zoo, not as model_zoo: no module may exist twice")
