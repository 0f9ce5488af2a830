"""Pods of a job that are deleted, preempted and made: what that costs the others, on a real cluster."""
