"""A Ray cluster of two nodes in one machine, for a test to talk to over stdin and stdout.

Prints the cluster's address; on the line "kill" the second node dies as a machine does that loses
its power; at the end of stdin the rest ends. The second node has a cache folder of its own, the
first argument: what lies in it was run there.
"""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster


def main() -> None:
    """Serve until stdin ends."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    second = cluster.add_node(num_cpus=1, env_vars={"XDG_CACHE_HOME": sys.argv[1]})
    cluster.wait_for_nodes()
    sys.stdout.write(f"{cluster.address}\n")
    sys.stdout.flush()
    for line in sys.stdin:
        if line.strip() == "kill":
            cluster.remove_node(second, allow_graceful=False)
            sys.stdout.write("killed\n")
            sys.stdout.flush()
    cluster.shutdown()


if __name__ == "__main__":
    main()
