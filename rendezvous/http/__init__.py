"""The server's HTTP face: what people, probes, monitors and controllers see of it, and what keeps the others out."""
