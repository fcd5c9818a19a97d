"""Asks a machine with GPUs everything that could only be read about, or tried on a stand-in.

``make gpu-check`` runs it: a table on the screen, and every finding as a line of JSON. Each row is
one question, says what its answer decides, and runs in processes of its own under a time limit, so
that a hang is an answer too. ``docs/gpu-results.md`` holds the answers that are known.

``make gpu-check REHEARSE=1`` runs the same rows on a machine without a GPU: those on the driver
against the stand-in of ``tests/fakes/cuda_driver``, those on torch with CPU tensors. That shows
that the suite works, and nothing about GPUs.
"""
