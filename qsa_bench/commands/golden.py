"""Dumps goldens from the reference and verifies goldens that there are."""

from __future__ import annotations

from pathlib import Path

from qsa_bench import goldens
from qsa_bench.errors import GoldenError
from qsa_bench.requests import (
    GoldenDumpRequest,
    GoldenFile,
    GoldenReport,
    GoldenVerifyRequest,
    Progress,
)


def run(request: GoldenDumpRequest | GoldenVerifyRequest, progress: Progress) -> GoldenReport:
    """Return the goldens dumped or verified; GoldenError at the first that does not hold."""
    if isinstance(request, GoldenVerifyRequest):
        return GoldenReport("verify", tuple(_verified(*found) for found in _asked(request)))
    progress.start(f"dumping the {request.kind} golden", None)
    try:
        goldens.dump(
            request.kind,
            request.out,
            request.seed,
            request.weights,
            request.hidden,
            force=request.force,
        )
    finally:
        progress.finish()
    return GoldenReport("dump", (_verified(request.out, request.kind),))


def _asked(request: GoldenVerifyRequest) -> list[tuple[Path, str]]:
    """Return the files to verify with their kinds."""
    kinds = goldens.kinds() if request.kind is None else (request.kind,)
    if request.path is None:
        return [(goldens.committed(kind), kind) for kind in kinds]
    if len(kinds) == 1:
        return [(request.path, kinds[0])]
    refusals = []
    for kind in kinds:
        try:
            goldens.load(request.path, kind)
        except GoldenError as error:
            refusals.append(f"as {kind}: {error}")
        else:
            return [(request.path, kind)]
    raise GoldenError(f"verifying {request.path}: it is no golden; {'; '.join(refusals)}")


def _verified(path: Path, kind: str) -> GoldenFile:
    golden = goldens.load(path, kind)
    return GoldenFile(
        path=path,
        kind=kind,
        bytes=path.stat().st_size,
        digest=golden.digest,
        metadata=golden.metadata,
        facts=tuple(goldens.verify(golden)),
    )
