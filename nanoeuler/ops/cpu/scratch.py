"""How much scratch the kernels need, and in what blocks they work: known without compiling any of them."""

from __future__ import annotations

from nanoeuler.ops.cpu.simd import MR, NR

KC = 256  # k's per block of a product: a panel of A and one of B (12 + 32 KB with AVX-512) fit into L1 together
NC = 8 * NR  # columns of B a thread packs at a time: KC x NC in L2
MC = 20 * MR  # rows of A a thread packs at a time
KS = 4096  # k's per packing round: bounds the shared buffer

NORM_ROWS = 32  # rows that layer norm's backward takes at a time
SUM_BLOCKS = 32  # a sum over rows has at most so many shares, whatever the number of threads
FLAT_BLOCK = 16384  # parameters that the global norm and AdamW take at a time

LOGITS_BYTES = 64 << 20  # the classifier's chunk of logits is at most about this large


def product_private() -> int:
    """Floats that each thread of a matrix product needs (the same for any shape)."""
    return KC * max(NC, MC) + MR * NR


def product_shared(M: int, N: int, K: int) -> int:
    """Floats of a product's shared packing buffer for this shape, whichever side it cuts."""
    return max((M + MR) * min(K, KS), (N + NR) * min(K, KS))


def attention_private(T: int, D: int) -> int:
    """Floats that a thread needs for sequences of T and heads of D: backward's, which is more."""
    Tp, Dm, Dn = T + MR, D + MR, -(-D // NR) * NR
    return Tp * (2 * NR + 2 * Dn + 2 * Dm) + 2 * NR * (D + Dn) + Dm * NR + 4 * NR + 16 * 16


def norm_shares(N: int, C: int) -> int:
    """Floats of layer norm's backward for N rows of C."""
    return -(-N // NORM_ROWS) * 3 * C


def sum_shares(C: int) -> int:
    """Floats of a sum over rows of C."""
    return SUM_BLOCKS * C


def flat_blocks(n: int) -> int:
    """Blocks of n parameters."""
    return -(-n // FLAT_BLOCK)


def classifier_rows(N: int, V: int) -> int:
    """Rows of logits that the classifier holds at a time, for N rows and a vocabulary of V."""
    return min(N, max(32, LOGITS_BYTES // (4 * V)))
