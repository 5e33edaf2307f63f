"""How every kernel of the CPU engine is compiled."""

# Sums may be reordered and products fused, but NaN and infinity stay what they are: a diverged run must show.
FAST_MATH = {"reassoc", "contract", "arcp", "nsz", "afn"}
FAST = {"fastmath": FAST_MATH, "error_model": "numpy", "cache": True}
KERNEL = FAST | {"nogil": True}  # for functions called by Python, which forks their parts (parallel.py)

# Decoding adds in a fixed order, that of the batched kernels: sums are written out as they are to be computed.
ORDERED = {"fastmath": False, "error_model": "numpy", "cache": True}

NONE, BIAS, BIAS_GELU, GELU_GRAD = 0, 1, 2, 3  # what a matrix product does to its result at the end
