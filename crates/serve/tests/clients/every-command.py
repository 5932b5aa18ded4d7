# Every command and flag that libnbd knows, run by nbdsh with two numbers set before: `base`, from where on 8 MiB and `large` bytes are
# zeroes and are zeroes again at the end, and `large`, the bytes of the largest request.
import os
assert h.can_fua() and h.can_df() and h.can_cache() and h.can_multi_conn() and h.can_trim() and h.can_zero() and h.can_fast_zero()
assert h.can_meta_context("base:allocation")
h.pwrite(b"a" * 5000, base + 100, nbd.CMD_FLAG_FUA)
assert h.pread(5002, base + 99) == b"\0" + b"a" * 5000 + b"\0"
assert h.pread_structured(5002, base + 99, lambda *a: 0, nbd.CMD_FLAG_DF) == b"\0" + b"a" * 5000 + b"\0"
h.zero(100, base + 150, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_FUA)
assert h.pread(200, base + 100) == b"a" * 50 + b"\0" * 100 + b"a" * 50
h.trim(4096, base + 4096, nbd.CMD_FLAG_FUA)
assert h.pread(8192, base) == b"\0" * 100 + b"a" * 50 + b"\0" * 100 + b"a" * 3846 + b"\0" * 4096
h.zero(4096, base + 8192, nbd.CMD_FLAG_NO_HOLE)
assert h.pread(4096, base + 8192) == b"\0" * 4096
chunks = []
h.pread_structured(65536, base, lambda buf, off, kind, err: chunks.append((len(buf), off - base, kind)))
assert chunks == [(4096, 0, nbd.READ_DATA), (61440, 4096, nbd.READ_HOLE)], chunks
h.cache(8192, base)
big = os.urandom(large)
h.pwrite(big, base + (1 << 20))
h.flush()
assert h.pread(large, base + (1 << 20)) == big
assert h.pread_structured(large, base + (1 << 20), lambda *a: 0, nbd.CMD_FLAG_DF) == big
extents = []
h.block_status(large, base + (1 << 20), lambda context, offset, entries, error: extents.extend(entries))
assert extents[:2] == [large, 0], extents
h.trim(large + (1 << 20), base)
h.set_strict_mode(0)
size = h.get_size()
for call in [lambda: h.pread(10, size - 5), lambda: h.pwrite(b"x" * 10, size - 5), lambda: h.trim(1, 1 << 62)]:
    try:
        call()
        raise SystemExit("a range beyond the end was accepted")
    except nbd.Error as e:
        assert e.errno in ("EINVAL", "ENOSPC"), e.errno
h.shutdown()
