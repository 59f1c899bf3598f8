"""Targets: how a kernel is compiled and linked for what it runs on."""
