"""Marks by which Hugging Face's `datasets` decodes the files in a parquet file.

It looks for features under the key `huggingface` of the schema's metadata, and heeds the one of a column only if the
column has exactly its storage type, which for images and audio is a struct of bytes and path: a column of plain bytes
stays one, whatever the metadata say (`Features.from_arrow_schema`, datasets 5.2).
"""

from __future__ import annotations

import json

import pyarrow as pa

STORAGE = pa.struct([pa.field("bytes", pa.binary()), pa.field("path", pa.string())])
"""`path` is the name that the file would have: some decoders go by its extension."""

_FEATURES = {"image": "Image", "audio": "Audio"}


def with_feature(schema: pa.Schema, column: str, kind: str) -> pa.Schema:
    """The schema, with the word that `column` holds files of a kind; the others have the types that it says."""
    features = {column: {"_type": _FEATURES[kind]}}
    return schema.with_metadata({"huggingface": json.dumps({"info": {"features": features}})})
