"""The environment in which an agent starts a worker: the names of the variables, in one place for both sides."""

from __future__ import annotations

WORKER = "ELASTIC_WORKER"  # the worker's nonce, 32 hex digits
CONTROL_FD = "ELASTIC_CONTROL_FD"  # inherited socketpair to the agent: one JSON message a line
PROGRESS_FD = "ELASTIC_PROGRESS_FD"  # inherited memfd, see progress.py
MARK = "ELASTIC_MARK"  # a word of one process and all that it starts, by which its agent finds them
LOCAL_RANK = "ELASTIC_LOCAL_RANK"  # slot on this host, from 0
LOCAL_WORLD_SIZE = "ELASTIC_LOCAL_WORLD_SIZE"  # number of slots on this host
JOB = "ELASTIC_JOB"  # the job's name
HOST = "ELASTIC_HOST"  # this host's name, for people
POD = "ELASTIC_POD_UID"  # the unique id of the Kubernetes pod that this host is
AGENT_ANSWERS = "ELASTIC_AGENT_ANSWERS"  # signals that come to every process, SIGTERM,SIGUSR1: the agent sees to them
ADDRESS = "ELASTIC_ADDRESS"  # the address that everything of this worker binds and advertises
BACKEND = "ELASTIC_BACKEND"  # what carries CPU tensors between workers that join the job themselves: one of BACKENDS
BACKENDS = ("gloo", "tcp")
RESTARTED = "ELASTIC_RESTARTED"  # set for a script that is started again at each change, and has no line to its agent
NUMA_BINDING = "ELASTIC_NUMA_BINDING"  # how the worker binds itself to the CPUs near its GPU
