"""qsa-bench: build sparse-attention indexer kernels and mutants of them, gate them, time them."""

__version__ = "0.1.0"
