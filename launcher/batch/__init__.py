"""Batch systems: what a job on a cluster of shared machines knows of itself, and how its agents find each other."""
