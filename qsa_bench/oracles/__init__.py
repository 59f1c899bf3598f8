"""What the kernels must compute, in float64 and numpy alone.

An oracle returns its own value and what else a correct kernel may return; it never sees a kernel.
"""
