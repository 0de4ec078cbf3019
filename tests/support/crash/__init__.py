"""The crash test: kills the real command at bad moments until it is done, and checks what is there with others' tools.

    python -m tests.support.crash --seeds=100 --formats=webdataset,parquet,files

Each seed is a story: a list of 50 and more shards from a server on loopback, a run that is killed several times, with
`kill -9` of the parent, of workers, of all, or politely, and started again with the same command until it ends with 0.
In four stories of five a transform takes some files apart into several samples, and changes others.
After each kill, while whatever survived is frozen, every file under a final name must be whole and every finished shard
complete; in the end each row must have exactly one outcome, and nothing may be left over, files or processes.

The same with a disk that fills (`--on=disk`) and with an S3 server that fails every tenth request (`--on=s3`).
It needs Linux (/proc) and the libraries in requirements-test.txt; nothing leaves this machine.
"""
