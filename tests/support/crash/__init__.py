"""The crash test: kills the real command at bad moments until it is done, and checks what is there with others' tools.

    python -m tests.support.crash --seeds=100 --formats=webdataset,parquet,files

Each seed is a story: a list from a server on loopback is downloaded, and then by chance it grows, or its `--limit`
does, another one extends the dataset, failed rows are retried, or files are damaged and `verify --repair` removes their
shards. Each command is killed several times, with `kill -9` of the parent, of workers, of all, or politely, and started
again until it ends by itself. In four stories of five a transform takes some files apart into several samples, and
changes others.

After each kill, while whatever survived is frozen, every file under a final name must be whole and every finished shard
complete; after each command each row must have the outcome that it must have, at most one success, statistics that add
up to that, and nothing may be left over, files or processes.

The same with a disk that fills (`--on=disk`) and with an S3 server that fails every tenth request (`--on=s3`). With
`--two`, two commands at a time are started on one folder, and never may both be at work.
It needs Linux (/proc) and the libraries in requirements-test.txt; nothing leaves this machine.
"""
