"""The GPU's kernels in Triton, one file an idea; each with *plans* that turn shapes into launches (``spec.py``).

A kernel is a pure ``@triton.jit`` function. A plan is plain Python that needs no GPU: it takes arrays (anything with
``shape``, ``dtype`` and ``ptr``), chooses tile sizes for the target, and returns the :class:`~.spec.Launch` list that
computes the operation. So the same launch can be compiled for any GPU on any machine, run on a GPU, or run in Triton's
interpreter on NumPy arrays.
"""
