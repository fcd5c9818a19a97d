"""What the benchmark scripts share: starting ranks, timing them together, judging and printing.

The modules know nothing of one particular benchmark. From low to high: ``shared_mapping`` and
``spin_barrier`` (bytes and rendezvous all ranks share), ``ranks`` and ``launch`` (processes),
``splits``, ``cells`` and ``contestants`` (what is called), ``interleave`` (how it is timed),
``results`` and ``table`` (what is kept and shown); ``exchange`` is one call that can be left in
flight. ``length_sets``, ``partitions`` and ``bounds`` belong to the balance
benchmark.
"""
