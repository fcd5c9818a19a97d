"""Rows on torch: programs that run on all ranks of a group.

``python -m gpu_check.ranks NAME`` starts the ranks of the program in the module of that name, whose
``run`` is collective.
"""
