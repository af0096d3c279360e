"""Removes the run paths (DT_RUNPATH, DT_RPATH) of 64-bit ELF files: drop_run_path.py FILE...
A library with one of its own is not searched for in the program's. pack_gpu.sh packs without."""
import struct
import sys

PT_DYNAMIC, DT_RPATH, DT_RUNPATH = 2, 15, 29
ENTRY = struct.Struct("<qQ")


def drop(path):
    with open(path, "rb") as file:
        data = bytearray(file.read())
    if data[:6] != b"\x7fELF\x02\x01":  # 64 bits, the low byte first
        return
    (headers,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    for header in range(headers, headers + size * count, size):
        kind, _, begin = struct.unpack_from("<IIQ", data, header)
        if kind != PT_DYNAMIC:
            continue
        (length,) = struct.unpack_from("<Q", data, header + 32)
        entries = [e for e in ENTRY.iter_unpack(bytes(data[begin : begin + length])) if e[0] not in (DT_RPATH, DT_RUNPATH)]
        table = b"".join(ENTRY.pack(*e) for e in entries)
        data[begin : begin + length] = table.ljust(length, b"\0")
        with open(path, "wb") as file:
            file.write(data)


for name in sys.argv[1:]:
    drop(name)
