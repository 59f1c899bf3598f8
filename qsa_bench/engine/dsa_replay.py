"""One captured graph of a DSA selection, replayed for lengths that a ceiling bounds."""

from __future__ import annotations

from qsa_bench.engine import dsa_select
from qsa_bench.engine.cuda_graph import CapturedGraph
from qsa_bench.engine.dsa_select import OK, Libraries, Values


def replay(libraries: Libraries, values: Values) -> int:
    """Capture once, then replay for `steps` lengths from `first_live` on, a token more each.

    values as of dsa_select, `replayed`. Step s reads the query at row s of q and weights and leaves
    its ids in row s of token_ids: a graph's addresses are constant too, so q, weights and ids pass
    through the first rows of staging buffers (`staged_q`, `staged_weights`, `staged_ids`), which
    the driver copies between replays. Returns the first status that is not OK.
    """
    graph = CapturedGraph(lambda stream: _record(libraries, values, stream))
    query, head, ids = (int(values[name]) for name in ("q_bytes", "weight_bytes", "id_bytes"))
    try:
        for step in range(values["steps"]):
            graph.copy(values["staged_q"], values["q"] + step * query, query)
            graph.copy(values["staged_weights"], values["weights"] + step * head, head)
            live = {**values, "live": values["first_live"] + step, "stream": graph.stream}
            status = dsa_select.write_geometry(libraries, live)
            if status != OK:
                return status
            graph.replay()
            graph.copy(values["token_ids"] + step * ids, values["staged_ids"], ids)
        graph.wait()
    finally:
        graph.close()
    return OK


def _record(libraries: Libraries, values: Values, stream: int) -> int:
    staged = {
        **values,
        "q": values["staged_q"],
        "weights": values["staged_weights"],
        "token_ids": values["staged_ids"],
        "stream": stream,
    }
    for launch in dsa_select.CAPTURED:
        status = launch(libraries, staged)
        if status != OK:
            return status
    return OK
