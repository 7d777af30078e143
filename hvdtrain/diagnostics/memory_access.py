"""Whether one process may copy from the memory of another on this host, as ranks of one host do (CMA).

Run by its path: a child reads from its parent, which is not its descendant, as a rank reads from a rank beside it. The
parent first allows it as Open MPI does, so that Yama's ``ptrace_scope=1`` is no obstacle, and a container without the
right still is.

    subprocess.run([sys.executable, "-P", __file__])        # prints "ok", or the name of the error: EPERM
"""

from __future__ import annotations

import ctypes
import errno
import os

PR_SET_PTRACER = 0x59616D61
WRITTEN = b"from the parent!"
ANY = ctypes.c_ulong(-1)


class Span(ctypes.Structure):
    """`struct iovec` of readv(2)."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def read_from_parent(libc: ctypes.CDLL, address: int, expected: bytes) -> str:
    """What a child finds where its parent has `expected`: "ok", or the name of the error."""
    copy = ctypes.create_string_buffer(len(expected))
    here, there = Span(ctypes.addressof(copy), len(expected)), Span(address, len(expected))
    count = libc.process_vm_readv(os.getppid(), ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    if count < 0:
        return errno.errorcode.get(ctypes.get_errno(), str(ctypes.get_errno()))
    return "ok" if copy.raw == expected else "EIO"


def main() -> None:
    """Fork, and let the child print its answer."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.process_vm_readv.restype = ctypes.c_ssize_t
    libc.prctl(PR_SET_PTRACER, ANY, 0, 0, 0)
    data = ctypes.create_string_buffer(len(WRITTEN))
    ready, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(ready, 1)
        print(read_from_parent(libc, ctypes.addressof(data), WRITTEN), flush=True)
        os._exit(0)
    data.raw = WRITTEN  # after the fork, so that the child has not got it in memory of its own
    os.write(go, b".")
    os.waitpid(child, 0)


if __name__ == "__main__":
    main()
