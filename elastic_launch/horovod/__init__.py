"""Horovod's API on this package's ring: `torch`, `tensorflow`, `keras` and what they have in common.

    import elastic_launch.horovod.torch as hvd

or, under `elastic-launch --horovod`, the script's own `import horovod.torch as hvd`. Importing this imports no framework.
docs/horovod-api.md says of each of Horovod's names what it is here.
"""

__version__ = "0.28.1"  # of Horovod, whose API this is


def run(*arguments: object, **options: object) -> None:
    """Refused: it would start worker processes from inside of a program."""
    from .common.exceptions import NotOfferedError

    raise NotOfferedError(
        "horovod.run is not offered: put what it calls into a script, and start that with elastic-launch"
    )
