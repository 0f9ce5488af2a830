"""One launcher that names other hosts: it serves the job, and has an agent on each of them.

Where every host runs the same line with --rendezvous, none of this is needed.
"""
