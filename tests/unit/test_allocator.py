"""Freed memory stays in the process while something wants it, and only then."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PASSES = 20

# Blocks of 48 MiB are filled and freed, as a pass does with its activations; prints the page faults of each stage.
PROGRAM = f"""
import ctypes, resource, sys, threading
from senseapp.allocator import keep_freed_memory_for, share_one_arena

class Owner:
    pass

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range({PASSES}):
        block = libc.malloc(48 << 20)
        libc.memset(block, 1, 48 << 20)
        libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return int(open("/proc/self/statm").read().split()[1])

def stages():
    first, second = Owner(), Owner()
    usual = faults()
    keep_freed_memory_for(first)
    keep_freed_memory_for(second)
    kept = faults()
    del first
    still_kept = faults()
    held = resident()
    del second
    print(usual, kept, still_kept, held - resident(), faults())

share_one_arena()
worker = threading.Thread(target=stages)
worker.start()
worker.join()
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told what to do with freed memory")
def test_pages_are_faulted_in_once_while_an_owner_lives_and_given_back_after() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    usual, kept, still_kept, returned_pages, afterwards = map(int, done.stdout.split())
    assert kept <= usual / (PASSES / 2)  # the first block is faulted in, the others reuse it
    assert still_kept < kept / 10  # one owner is left
    assert returned_pages > 0.9 * (48 << 20) / 4096
    assert afterwards > kept  # as before


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from senseapp import allocator

    monkeypatch.setattr(allocator, "_glibc", lambda: None)
    allocator.share_one_arena()
    allocator.keep_freed_memory_for(object())  # an object without weak references would raise, were it looked at
    assert allocator._owners == 0
