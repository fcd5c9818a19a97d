"""A model of training steps on many ranks: what computes, what travels, and who waits for whom.

``freescale simulate`` is its command. :class:`FluidSimulation` takes any number of ranks,
:class:`LinkByLinkSimulation` few, but each chunk on each link; ``docs/simulation.md`` has the
model, its formulas, and how it compares with measured runs. Only dealing samples out needs torch.
"""
