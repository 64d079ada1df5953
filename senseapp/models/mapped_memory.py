"""Hand back the memory of weights that were read from a mapped file and are not needed for now."""

from __future__ import annotations

import ctypes
import mmap
import sys

from torch import Tensor

_MADV_PAGEOUT = 21  # linux/mman.h; clean pages of a file are dropped and read again when they are touched


def release_pages(tensor: Tensor) -> None:
    """Advise the system to drop the pages that lie wholly inside ``tensor``; its numbers stay as they are.

    A mapped gigabyte would otherwise count as the server's own while its copy is made. Where the system does not
    know the advice, nothing happens.
    """
    if sys.platform != "linux" or not tensor.is_contiguous():
        return
    first = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    length = tensor.data_ptr() + tensor.numel() * tensor.element_size() - first
    if length >= mmap.PAGESIZE:
        whole_pages = length // mmap.PAGESIZE * mmap.PAGESIZE
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(whole_pages), _MADV_PAGEOUT)
