"""The GPU engine: kernels in Triton (``kernels/``), launched without PyTorch (``runtime/``).

``engine`` fills the table of operations in, ``step`` records a whole training step. Importing this package imports
neither Triton nor CUDA.
"""
