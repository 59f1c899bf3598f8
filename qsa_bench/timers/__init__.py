"""How launches are timed, each way with its own name; a name stands in every row.

cupti: the sum of the durations of all device activities of one call, as CUPTI records them.
graph: replay of a CUDA graph of many calls, per call; launch gaps are inside.
event: a pair of events around one call; refused below 50 us, where the pair itself is most of it.
nsys:  kernel durations that Nsight Systems recorded elsewhere (read, never taken here).

Only the child process imports the submodules that need torch.
"""

from __future__ import annotations

CUPTI = "cupti"
GRAPH = "graph"
EVENT = "event"
NSYS = "nsys"
TIMERS = (CUPTI, GRAPH, EVENT)

WARM = "warm"
COLD = "cold"
CACHES = (WARM, COLD)

# What a timer can tell apart, ns: CUPTI's clock steps by 32, an event pair over a graph of
# launches that lasts 1.5 ms by about 2 a launch.
RESOLUTION_NS = {CUPTI: 32, GRAPH: 8, EVENT: 1000, NSYS: 32}
# An empty pair of events reads 8.7 us and one around an empty kernel 20 us on an H200.
LEAST_EVENT_NS = 50_000
