"""How every kernel of the CPU engine is compiled."""

# Sums may be reordered and products fused, but NaN and infinity stay what they are: a diverged run must show.
FAST_MATH = {"reassoc", "contract", "arcp", "nsz", "afn"}
FAST = {"fastmath": FAST_MATH, "error_model": "numpy", "cache": True}
KERNEL = FAST | {"nogil": True}  # for functions called by Python, which forks their parts (parallel.py)
# Parts of kernels declare their types: else Numba compiles them anew for each literal 0 or 1 among the arguments.
PART = FAST | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # for functions called by kernels only

# Decoding adds in a fixed order, that of the batched kernels: sums are written out as they are to be computed.
ORDERED = {"fastmath": False, "error_model": "numpy", "cache": True}
ORDERED_PART = ORDERED | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}

NONE, BIAS, BIAS_GELU, GELU_GRAD = 0, 1, 2, 3  # what a matrix product does to its result at the end
