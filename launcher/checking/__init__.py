"""`elastic-launch --check`: what this machine has, and what would go wrong with what to do about it.

One module for each kind of question; each returns findings and raises nothing.
"""
