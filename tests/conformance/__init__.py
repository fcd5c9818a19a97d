"""Runs the distributed test suites that torch ships against a backend of torch.distributed."""
