"""The schemes of URLs that rows of a list may have, and those of them that a run has to allow by name."""

from __future__ import annotations

WEB = frozenset({"http", "https", "ftp", "ftps"})

OBJECT_STORES = frozenset({"abfs", "abfss", "adl", "az", "gcs", "gs", "oci", "oss", "s3", "s3a", "tos"})
"""They have no folders, and an object is there when its upload is complete."""

SERVERS = frozenset({"ftp", "hdfs", "sftp", "smb", "ssh", "webhdfs"})
"""Their URLs name the host to connect to."""

ROWS_ONLY = frozenset({"ftp", "ftps", "sftp", "ssh"})
"""Servers that are read file by file, and neither hold lists nor datasets."""

LOCAL = frozenset({"file", "memory"})
"""What lies on this machine."""

# Of what fsspec knows, not those that open further URLs (simplecache, zip, reference …), run programs (git) or speak
# for something that is running here (jupyter, dask).
FILE_SYSTEMS = OBJECT_STORES | (SERVERS - WEB) | LOCAL | {"data", "hf"}

GUARDED = FILE_SYSTEMS - {"data"}
"""What is read with the rights and credentials of the user, who may not know what stands in the list.

Anybody can read the others: a request by http or ftp has no credentials but those in its URL or in options for the web,
its address is checked at the connection, and a data: URL is its own file.
"""
