"""What an engine runs around the kernels: counts decided and checked before a pointer is touched."""
