"""Sources and flags to a shared library: content-addressed, renamed into place once.

The digest covers every input byte: the source, each header it includes from the kernels folder,
the runtime's sources, the flags and the compiler's version. A changed shared header therefore
rebuilds every kernel that includes it, and nothing else.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path

from qsa_bench import build_cache
from qsa_bench.compiling import execute, failure, require_scratch
from qsa_bench.errors import EnvironmentMissingError
from qsa_bench.model import Build, Kernel
from qsa_bench.targets.toolchain import Toolchain, toolchain

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


@lru_cache(maxsize=4096)
def _read(path: Path, _stamp: tuple[int, int]) -> tuple[bytes, tuple[str, ...]]:
    content = path.read_bytes()
    return content, tuple(match.decode() for match in _INCLUDE.findall(content))


def _content(path: Path) -> tuple[bytes, tuple[str, ...]]:
    stat = path.stat()
    return _read(path, (stat.st_mtime_ns, stat.st_size))


class Sources:
    """Which headers the sources of one tree reach; each file is read and resolved once.

    `root` holds the include folder kernels/.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.include = self.root / "kernels"
        self._direct: dict[Path, tuple[Path, ...]] = {}

    def closure(self, source: Path) -> tuple[Path, ...]:
        """Return a source and every header it reaches, sorted.

        An include is looked up beside its file, then in the include folder; one found in neither
        belongs to the compiler and is covered by its version.
        """
        found: set[Path] = set()
        pending = [source]
        while pending:
            path = pending.pop()
            if path not in found:
                found.add(path)
                pending.extend(self._includes(path))
        return tuple(sorted(found))

    def bytes_of(self, source: Path) -> Iterable[bytes]:
        """Yield names, relative to the root, and contents of a source's closure."""
        for path in self.closure(source):
            yield os.path.relpath(path, self.root).encode()
            yield _content(path)[0]

    def _includes(self, path: Path) -> tuple[Path, ...]:
        if path not in self._direct:
            found: list[Path] = []
            for name in _content(path)[1]:
                for base in (path.parent, self.include):
                    # Path.resolve costs a system call a component, and there is no link to follow.
                    candidate = Path(os.path.normpath(f"{base}/{name}"))
                    if candidate.is_file():
                        found.append(candidate)
                        break
            self._direct[path] = tuple(found)
        return self._direct[path]


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()[:32]


@cache
def compiler_version(program: str) -> tuple[str, str]:
    """Return the compiler's path and the line that names its version.

    EnvironmentMissingError when it is not installed.
    """
    path = shutil.which(program)
    if path is None:
        raise EnvironmentMissingError(
            f"building kernels: the compiler {program} is not on the PATH; install it "
            f"(Debian: apt-get install {'g++' if program == 'g++' else 'nvidia-cuda-toolkit'})"
        )
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise EnvironmentMissingError(
            f"building kernels: {path} can't be run ({error.strerror}); install {program} anew"
        ) from None
    lines = answer.stdout.strip().splitlines() or ["unknown version"]
    version = next((line for line in lines if "release" in line or "g++" in line), lines[0])
    return path, version.strip()


class Builder:
    """Builds kernels into `cache`; safe to use from several threads and processes at once.

    EnvironmentMissingError where there is no room for scratch files.
    """

    def __init__(self, cache_root: Path) -> None:
        require_scratch()
        self._objects = cache_root / "objects"
        self._libraries = cache_root / "libraries"
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()

    def build(
        self,
        kernel: Kernel,
        target: str,
        *,
        root: Path,
        mode: str = "plain",
        defines: Mapping[str, int | str] | None = None,
        mutant: str | None = None,
        strict: bool = False,
        flags: Sequence[str] = (),
    ) -> Build:
        """Build `kernel` from the tree `root` (it holds kernels/) for `target`.

        `strict` makes every warning an error. `flags` come last on the compiler's command line.

        A source that does not compile is a Build without library and with the log, not an
        exception; EnvironmentMissingError when the compiler is missing.
        """
        chain = toolchain(target)
        begun = time.perf_counter()
        _, version = compiler_version(chain.COMPILER)
        sources = Sources(root)
        source = sources.root / kernel.source
        chosen = dict(defines or {})
        extra = (*(chain.STRICT_FLAGS if strict else ()), *flags)
        command = (
            *chain.compile_command(Path("SOURCE"), Path("OBJECT"), Path("INCLUDE"), mode, chosen),
            *extra,
        )
        object_digest = _digest(
            [version.encode(), *(flag.encode() for flag in command), *sources.bytes_of(source)]
        )
        # Side by side: a first build has the runtime to compile too, and may wait for a kernel's object
        # that another mode's build compiles.
        with ThreadPoolExecutor(1) as aside:
            linked = aside.submit(self._runtime, chain, mode, sources, version)
            code, log = self._object(object_digest, source, sources, chain, mode, chosen, extra)
            runtime, runtime_log = linked.result()
        failed = Build(
            kernel.name,
            target,
            mode,
            object_digest,
            "",
            version,
            command,
            None,
            log,
            mutant=mutant,
            seconds=time.perf_counter() - begun,
        )
        if code is None:
            return failed
        code_digest = build_cache.code_digest(code)
        if runtime is None:
            raise EnvironmentMissingError(
                f"building the {target} runtime ({mode}): {runtime_log.strip()}"
            )
        digest = _digest([object_digest.encode(), *(path.name.encode() for path in runtime)])
        library = self._libraries / digest / f"{kernel.name}.so"
        cached, link_log = self._link(chain, [code, *runtime], library)
        if link_log:
            return replace(failed, log=link_log)
        return Build(
            kernel.name,
            target,
            mode,
            digest,
            code_digest,
            version,
            command,
            str(library),
            log,
            cached,
            time.perf_counter() - begun,
            mutant,
        )

    def _lock(self, key: str) -> threading.Lock:
        with self._guard:
            return self._locks.setdefault(key, threading.Lock())

    def _object(
        self,
        digest: str,
        source: Path,
        sources: Sources,
        chain: Toolchain,
        mode: str,
        defines: Mapping[str, int | str],
        extra: Sequence[str],
    ) -> tuple[Path | None, str]:
        """Compile into the cache.

        A failure is not kept: a compiler that was interrupted or ran out of memory or disk says
        nothing about the source.
        """
        target = self._objects / f"{digest}.o"
        with self._lock(digest):
            if build_cache.is_whole(target):
                return target, ""
            _make_folder(self._objects)
            with tempfile.TemporaryDirectory(dir=self._objects, prefix="building-") as scratch:
                made = Path(scratch) / "out.o"
                # The compiler runs in the tree's root and sees relative paths, so that the same
                # source in another folder gives the same object.
                command = [
                    *chain.compile_command(
                        source.relative_to(sources.root), made, Path("kernels"), mode, defines
                    ),
                    *extra,
                    *chain.relocation_flags(sources.root),
                ]
                done = execute(command, sources.root)
                if fault := failure(done, command, made):
                    return None, fault
                build_cache.keep(made, target)
        return target, done.stderr.strip()

    def _runtime(
        self, chain: Toolchain, mode: str, sources: Sources, version: str
    ) -> tuple[list[Path] | None, str]:
        objects: list[Path] = []
        for source in chain.runtime_sources(sources.include):
            flags = chain.compile_command(
                Path("INCLUDE/host/SOURCE"), Path("OBJECT"), Path("INCLUDE"), mode, {}
            )
            digest = _digest(
                [version.encode(), *(flag.encode() for flag in flags), *sources.bytes_of(source)]
            )
            target = self._objects / f"{digest}.o"
            with self._lock(digest):
                if not build_cache.is_whole(target):
                    _make_folder(self._objects)
                    with tempfile.TemporaryDirectory(dir=self._objects) as scratch:
                        made = Path(scratch) / "out.o"
                        command = chain.compile_command(
                            source.relative_to(sources.root),
                            made,
                            Path("kernels"),
                            mode,
                            {},
                        )
                        done = execute(command, sources.root)
                        if fault := failure(done, command, made):
                            return None, fault
                        build_cache.keep(made, target)
            objects.append(target)
        return objects, ""

    def _link(self, chain: Toolchain, objects: Sequence[Path], library: Path) -> tuple[bool, str]:
        """Link into the cache; return whether the library was there, and why there is none."""
        with self._lock(str(library)):
            if build_cache.is_whole(library):
                return True, ""
            _make_folder(library.parent)
            with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
                made = Path(scratch) / library.name
                command = chain.link_command(list(objects), made)
                done = execute(command, library.parent)
                if fault := failure(done, command, made):
                    return False, fault
                build_cache.keep(made, library)
        return False, ""


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentMissingError(
            f"making the build cache {folder}: {error.strerror}; "
            "set XDG_CACHE_HOME to a writable folder"
        ) from None
