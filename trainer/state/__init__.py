"""What is replicated between the members of a job, how it is compared, and how it is copied to a joiner."""
