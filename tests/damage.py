"""Damage a Parquet file as a store may that does not notice it."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq


def flip(file: Path, column: int = 0) -> bytes:
    """Change the last byte of a column's first row group, without the checksum that Hadoop keeps beside a local file;
    return what the file was.
    """
    whole = file.read_bytes()
    pages = pq.read_metadata(file).row_group(0).column(column)
    at = (pages.dictionary_page_offset or pages.data_page_offset) + pages.total_compressed_size - 1
    file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    return whole
