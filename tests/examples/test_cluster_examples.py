"""The examples for Slurm and Kubernetes, run as these would run them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs
import yaml

from any2ds.testing.server import Server, serve
from tests.support.forked import commands

EXAMPLES = Path(__file__).parents[2] / "examples"
ROWS = 12

# Starts the tasks of a step at the same time, as srun does, and ends with the highest of their exit codes.
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for ((n = 0; n < SLURM_NTASKS; n++)); do
    SLURM_STEP_ID=0 SLURM_PROCID=$n "$@" &
    tasks[n]=$!
done
highest=0
for task in "${tasks[@]}"; do wait "$task"; code=$?; ((code > highest)) && highest=$code; done
exit $highest
"""


@pytest.fixture
def server(tmp_path: Path) -> Server:
    media = tmp_path / "media"
    media.mkdir()
    for n in range(ROWS):
        (media / str(n)).write_bytes(b"file %d" % n)
    with serve(media) as server:
        yield server  # type: ignore[misc]


def program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def sbatch(tmp_path: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """As a batch script is run: one process, in which the variables of the job are set."""
    programs = tmp_path / "bin"
    program(programs, "srun", SRUN)
    program(programs, "scontrol", f'#!/bin/bash\necho "$@" > {tmp_path}/scontrol\n')
    program(programs, "any2ds", f'#!/bin/bash\nexec {sys.executable} -m any2ds "$@"\n')
    job = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_CPUS_PER_TASK": "1"}
    variables = {**os.environ, **job, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(EXAMPLES.parent)}
    command = ["bash", str(EXAMPLES / "slurm.sbatch"), *arguments]
    return subprocess.run(
        command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=200, check=False
    )


@pytest.mark.slow
def test_the_batch_script_makes_a_dataset_with_its_tasks(server: Server, tmp_path: Path) -> None:
    (tmp_path / "urls.txt").write_text("".join(f"{server.url(str(n))}\n" for n in range(ROWS)))
    done = sbatch(tmp_path, "urls.txt", "dataset", "--number_sample_per_shard=2")
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert f"SLURM_PROCID says that this is rank {rank} of 2" in " ".join(done.stderr.split())
    listed = json.loads((tmp_path / "dataset" / ".any2ds/shards").read_bytes())
    assert (listed["shards"], listed["open"]) == (6, False)
    assert (tmp_path / "dataset" / "report.html").exists()
    assert set(server.counts.values()) == {1}  # robots.txt is asked for by each
    again = sbatch(tmp_path, "urls.txt", "dataset", "--number_sample_per_shard=3")
    assert again.returncode == 2
    assert "other options" in again.stderr
    assert not (tmp_path / "scontrol").exists()


def test_the_batch_script_is_requeued_when_its_time_is_over(tmp_path: Path) -> None:
    program(tmp_path / "bin", "any2ds", "")
    (tmp_path / "urls.txt").write_text("")
    script = (EXAMPLES / "slurm.sbatch").read_text()
    assert script.count("#SBATCH --") == 10
    program(tmp_path / "bin", "killed", "#!/bin/bash\nexit 143\n")
    changed = tmp_path / "slurm.sbatch"
    changed.write_text(script.replace("--label any2ds", "--label killed"))
    program(tmp_path / "bin", "srun", SRUN)
    program(tmp_path / "bin", "scontrol", f'#!/bin/bash\necho "$@" > {tmp_path}/scontrol\n')
    variables = {**os.environ, "SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    subprocess.run(["bash", str(changed), "urls.txt", "out"], cwd=tmp_path, env=variables, timeout=100, check=True)
    assert (tmp_path / "scontrol").read_text() == "requeue 7\n"


@pytest.mark.slow
def test_the_job_makes_a_dataset_with_its_pods(server: Server, tmp_path: Path, s3_server: None) -> None:
    job = yaml.safe_load((EXAMPLES / "kubernetes-job.yaml").read_text())
    assert (job["apiVersion"], job["kind"], job["spec"]["completionMode"]) == ("batch/v1", "Job", "Indexed")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    count = job["spec"]["completions"]
    assert f"--world_size={count}" in container["args"]
    assert pod["restartPolicy"] == "Never"
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    fs = s3fs.S3FileSystem()
    fs.mkdir("my-bucket")
    with fs.open("my-bucket/urls.parquet", "wb") as file:
        pq.write_table(pa.table({"url": [server.url(str(n)) for n in range(ROWS)]}), file)
    variables = {each["name"]: each["value"] for each in container["env"]}
    assert container["command"] == ["any2ds"]
    with commands(tmp_path) as start:
        more = ("--number_sample_per_shard=1", "--distributor=inline")  # small, and in one process each
        pods = [
            start(*container["args"], *more, env={**variables, "JOB_COMPLETION_INDEX": str(index)})
            for index in range(count)
        ]
        for one in pods:
            assert one.ended() == 0, one.said
        said = [json.loads(line) for line in pods[3].said.splitlines()]
    assert [each["member"] for each in said if each["event"] == "start"] == [f"rank-3-of-{count}"]
    listed = json.loads(fs.cat_file("my-bucket/dataset/.any2ds/shards"))
    assert (listed["shards"], listed["open"]) == (ROWS, False)
