"""Benchmarks: ``freescale bench``, and what the scripts in ``benchmarks/`` share with it.

From low to high: ``shared_mapping``, ``spin_barrier`` and ``barrier`` (bytes and rendezvous all
ranks share), ``ranks`` and ``launch`` (processes), ``devices`` and ``clocks``, ``splits``,
``cells``, ``workload`` and ``contestants`` (what is called), ``roster`` (who takes part),
``interleave`` (how it is timed), ``results`` and ``table`` (what is kept and shown); ``exchange``
is one call that can be left in flight, and ``timed_training`` takes steps whose exchanges
``noted_exchanges`` notes. ``mode`` carries one benchmark out, on ranks of its own or those of a
job: ``collectives``, ``priority`` and ``overlap`` are the three that there are.

Nothing else in the package imports it but the command line.
"""
