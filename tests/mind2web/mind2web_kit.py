"""Hand-made pages as published rows, and an archive encrypted as the published one is."""

from __future__ import annotations

import binascii
import io
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from env_servers.mind2web import store
from env_servers.mind2web.official import read
from env_servers.mind2web.store import Store

PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(Path(__file__).with_name("pages").iterdir())}

Done = tuple[str, Sequence[str], str, str]
"""Page, nodes that count as its element, operation, value."""


def task_row(id: str, *steps: Done, text: str = "Do what was done", **fields: Any) -> dict[str, Any]:
    """A row of `osunlp/Mind2Web`; `raw_html` marks the element as the published field does."""
    return {
        "annotation_id": id,
        "website": "handmade",
        "domain": "Testing",
        "subdomain": "Pages",
        "confirmed_task": text,
        "action_reprs": [f"[thing]  Gold {n} -> {op}: {value}" for n, (_, _, op, value) in enumerate(steps)],
        "actions": [
            {
                "action_uid": f"uid-{n}",
                "cleaned_html": page,
                "raw_html": page,
                "operation": {"op": op, "original_op": op, "value": value},
                "pos_candidates": [{"tag": "a", "attributes": "{}", "backend_node_id": node} for node in nodes],
                "neg_candidates": [{"tag": "p", "attributes": "{}", "backend_node_id": "1"}],
            }
            for n, (page, nodes, op, value) in enumerate(steps)
        ],
        **fields,
    }


def store_of(*rows: dict[str, Any], split: str = "sample") -> Store:
    return store.in_memory((split, read(row)) for row in rows)


def encrypted_zip(members: dict[str, bytes], password: str) -> bytes:
    """Writes an archive with the traditional encryption, which `zipfile` can only read."""
    plain = io.BytesIO()
    with zipfile.ZipFile(plain, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), _encrypt(content, password.encode()))
    data = bytearray(plain.getvalue())
    with zipfile.ZipFile(io.BytesIO(bytes(data))) as archive:
        for member in archive.infolist():
            crc = binascii.crc32(members[member.filename])
            size = len(members[member.filename])
            _patch(data, member.header_offset + 6, 14 - 6, crc, size)
    at = data.find(b"PK\x01\x02")
    for content in members.values():
        _patch(data, at + 8, 16 - 8, binascii.crc32(content), len(content))
        lengths = [int.from_bytes(data[at + k : at + k + 2], "little") for k in (28, 30, 32)]
        at += 46 + sum(lengths)
    return bytes(data)


def _patch(data: bytearray, flags_at: int, crc_after: int, crc: int, size: int) -> None:
    data[flags_at] |= 1  # encrypted
    crc_at = flags_at + crc_after
    data[crc_at : crc_at + 4] = crc.to_bytes(4, "little")
    data[crc_at + 8 : crc_at + 12] = size.to_bytes(4, "little")


def _encrypt(content: bytes, password: bytes) -> bytes:
    keys = [0x12345678, 0x23456789, 0x34567890]
    table = [_crc_entry(n) for n in range(256)]

    def update(byte: int) -> None:
        keys[0] = table[(keys[0] ^ byte) & 255] ^ (keys[0] >> 8)
        keys[1] = ((keys[1] + (keys[0] & 255)) * 134775813 + 1) & 0xFFFFFFFF
        keys[2] = table[(keys[2] ^ (keys[1] >> 24)) & 255] ^ (keys[2] >> 8)

    for byte in password:
        update(byte)
    out = bytearray()
    check = binascii.crc32(content) >> 24
    for byte in [*bytes(11), check, *content]:
        mix = keys[2] | 2
        out.append(byte ^ (((mix * (mix ^ 1)) >> 8) & 255))
        update(byte)
    return bytes(out)


def _crc_entry(value: int) -> int:
    for _ in range(8):
        value = (value >> 1) ^ 0xEDB88320 if value & 1 else value >> 1
    return value
