"""A wall clock that can be set for one process and its children, without touching the machine's.

A small library is put before the C library (`LD_PRELOAD`): it adds to what the system says the time
is an offset that stands in a file, which may change at any moment.  Monotonic clocks are left
alone, as a real step of the clock leaves them.  It needs a C compiler; where there is none, `build`
says so by returning None, and clocks are not stepped.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final

FILE: Final = "ROUNDELAY_CLOCK"
"""Environment variable: the file with the offset."""
OFFSET: Final = struct.Struct("=q")

SOURCE: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset_ns;
static int (*real_clock)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("ROUNDELAY_CLOCK");
    real_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *shared = mmap(0, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (shared != MAP_FAILED) offset_ns = shared;
}

int clock_gettime(clockid_t which, struct timespec *now) {
    if (!real_clock)
        real_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real_clock(which, now);
    if (failed || !offset_ns) return failed;
    if (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE || which == CLOCK_TAI) {
        int64_t ns = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec + *offset_ns;
        now->tv_sec = ns / 1000000000;
        now->tv_nsec = ns % 1000000000;
    }
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *to) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (to) *to = exact.tv_sec;
    return exact.tv_sec;
}
"""


def build(folder: Path) -> Path | None:
    """The library, made in `folder`; None where it cannot be."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(SOURCE)
    options = ["-O1", "-shared", "-fPIC", "-ldl"]
    compiled = subprocess.run(
        [compiler, "-o", library, source, *options], capture_output=True, check=False
    )
    return library if compiled.returncode == 0 else None


class WallClock:
    """The wall clock of one machine."""

    def __init__(self, library: Path | None, path: Path) -> None:
        self.library = library
        self.path = path
        path.write_bytes(OFFSET.pack(0))

    def environment(self) -> dict[str, str]:
        """For the processes of that machine."""
        if self.library is None:
            return {}
        before = os.environ.get("LD_PRELOAD", "")
        preload = f"{self.library}:{before}" if before else str(self.library)
        return {"LD_PRELOAD": preload, FILE: str(self.path)}

    def step(self, seconds: float) -> None:
        """Set it that much ahead of the machine's, from now on."""
        with self.path.open("r+b") as file:  # in place: it is mapped
            file.write(OFFSET.pack(int(seconds * 1e9)))
