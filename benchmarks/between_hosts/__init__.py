"""Contestants of ``multihost.py``: processes of their own, on the hosts of ``tests/multihost``."""
