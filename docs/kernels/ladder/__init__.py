"""The steps of each chapter as kernels that run: from the naive version to the one that the engine uses.

Every file makes a :class:`~.common.Ladder`: the arrays, the rungs (each a list of launches, like the engine's own
plans), and what NumPy says should come out. ``tests/test_ladder.py`` runs all rungs in Triton's interpreter,
``measure.py`` on a GPU.
"""
