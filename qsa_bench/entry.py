"""The program's first lines: an interrupt that comes while it is still being read is one too."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line and return its exit code."""
    try:
        from qsa_bench import cli

        return cli.main()
    except KeyboardInterrupt:
        sys.stderr.write("qsa-bench: interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
