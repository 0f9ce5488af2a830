"""What recovery, changes and steady training cost, measured on one machine: `python -m benchmarks.recovery`."""
