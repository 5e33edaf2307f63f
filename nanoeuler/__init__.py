"""NanoEuler: GPT-2 complete and from scratch in Python."""

__version__ = "0.1.0"
