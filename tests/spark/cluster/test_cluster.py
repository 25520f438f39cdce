"""A Spark standalone cluster: a master and two workers on addresses of their own.

Executors get eoslog in an archive: an extension module can't be imported out of a zipped wheel.
"""

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
import eoslog
from tests.spark.helpers import staged
from tests.spark.torture.kills import descendants

pytestmark = [pytest.mark.spark, pytest.mark.process]
ROWS = 600
HOSTS = ("127.0.0.2", "127.0.0.3")
LIGHT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
TRAP = "spark.write.rows"


class Cluster:
    """A master and two workers, ended with all that they started."""

    def __init__(self, folder):
        import pyspark

        self.home = Path(pyspark.__file__).parent
        self.folder = folder
        self.env = {
            **os.environ, "SPARK_HOME": str(self.home), "SPARK_SCALA_VERSION": "2.13",
            "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": LIGHT,
            "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_DIRS": str(folder / "local"),
        }  # fmt: skip
        self.started = []
        log = self.start("master.Master", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self.url = self.wait_for(log, "Starting Spark master at ").split()[0]
        for host in HOSTS:
            log = self.start(
                "worker.Worker", host, "--cores", "1", "--memory", "900m", "--webui-port", "0",
                "--work-dir", str(folder / f"work-{host}"), self.url,
            )  # fmt: skip
            self.wait_for(log, "Successfully registered with master")
        self.workers = dict(self.started[1:])

    def start(self, name, host, *args):
        log = self.folder / f"{name}-{host}.log"
        command = [str(self.home / "bin/spark-class"), f"org.apache.spark.deploy.{name}"]
        env = {**self.env, "SPARK_LOCAL_IP": host, "SPARK_LOCAL_HOSTNAME": host}
        with log.open("w") as out:
            process = subprocess.Popen(
                [*command, "--host", host, *args], stdout=out, stderr=out, env=env
            )
        self.started.append((host, process))
        return log

    def wait_for(self, log, text):
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            after = log.read_text().partition(text)[2]
            if after:
                return after
            time.sleep(0.1)
        raise AssertionError(f"{text!r} is not in {log}: {log.read_text()[-2000:]}")

    def submit(self, archive, path, version, traps, **conf):
        given = {
            "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false", "spark.executor.memory": "520m",
            "spark.driver.memory": "520m", "spark.driver.extraJavaOptions": LIGHT,
            "spark.executor.extraJavaOptions": LIGHT, "spark.sql.shuffle.partitions": "2",
            "spark.sql.codegen.wholeStage": "false", "spark.log.level": "OFF",
            # No task starts before both hosts have registered.
            "spark.cores.max": "2", "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "180s",
            "spark.executorEnv.PYTHONPATH": "./shipped",
            "spark.executorEnv.EOSLOG_FAILPOINTS": f"{TRAP}=stop@{traps / TRAP}", **conf,
        }  # fmt: skip
        command = [str(self.home / "bin/spark-submit"), "--master", self.url]
        command += ["--archives", f"{archive}#shipped"]
        for name, value in given.items():
            command += ["--conf", f"{name}={value}"]
        job = Path(__file__).with_name("cluster_job.py")
        env = {**self.env, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "127.0.0.1"}
        return subprocess.Popen(
            [*command, str(job), path, str(version)], env=env, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def kill(self, host):
        """The worker of a host, by SIGKILL, with its executors."""
        for at, process in self.started:
            if at == host:
                for pid in [*descendants(process.pid), process.pid]:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                process.wait()

    def host_of(self, pid):
        """The host below whose worker a process runs."""
        for host, process in self.workers.items():
            if pid in descendants(process.pid):
                return host
        raise AssertionError(f"process {pid} runs under no worker")

    def close(self):
        for host in {host for host, _ in self.started}:
            self.kill(host)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    found = Cluster(tmp_path_factory.mktemp("cluster"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """The packages as a portable environment.

    Spark unpacks it next to each executor.
    """
    import pyspark_eoslog

    path = tmp_path_factory.mktemp("archive") / "packed.tar.gz"
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for package in (eoslog, pyspark_eoslog):
            folder = Path(package.__file__).parent
            tar.add(folder, folder.name, filter=lambda m: None if "__pycache__" in m.name else m)
    return path


@pytest.fixture
def shared(tmp_path):
    """The directory that all hosts see."""
    path = tmp_path / "log"
    with eoslog.open(path) as log:
        log.create_topic("in", 2)
        log.create_topic("out", 2)
        with log.producer() as producer:
            for n in range(ROWS):
                producer.produce("in", b"%d" % n, b"%d" % n)
        yield log


def written(log):
    found = []
    for batch in log.scan("out", columns=["value"], binary="copy"):
        found += [int(value) for value in batch.column("value").to_pylist()]
    return sorted(found)


def outcome(job):
    out, errors = job.communicate(timeout=400)
    assert job.returncode == 0, errors[-3000:]
    return json.loads(out.splitlines()[-1])


def stopped_at(traps, job):
    """The process that has reached the trap and is blocked in it."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and job.poll() is None:
        for path in traps.glob(f"{TRAP}.*"):
            pid = path.name.rpartition(".")[2]
            if pid.isdigit():
                return int(pid)
        time.sleep(0.02)
    job.kill()
    raise AssertionError(f"no executor came to its step: {job.communicate()[1][-3000:]}")


def test_a_speculative_copy_wins_and_the_suspended_attempt_leaves_nothing(
    cluster, archive, shared, tmp_path
):
    (tmp_path / TRAP).touch()
    job = cluster.submit(
        archive, shared.path, 1, tmp_path,
        **{
            "spark.speculation": "true", "spark.speculation.interval": "200ms",
            "spark.speculation.minTaskRuntime": "1s", "spark.speculation.quantile": "0.1",
            "spark.speculation.multiplier": "1.1",
        },
    )  # fmt: skip
    pid = stopped_at(tmp_path, job)
    try:
        found = outcome(job)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert found["hosts"] == list(HOSTS), "both hosts took part"
    assert all("/shipped/" in place for place in found["places"]), found["places"]
    assert written(shared) == list(range(ROWS))


def test_a_worker_killed_midway_neither_loses_nor_duplicates_rows(
    cluster, archive, shared, tmp_path
):
    (tmp_path / TRAP).touch()
    job = cluster.submit(archive, shared.path, 2, tmp_path)
    victim = cluster.host_of(stopped_at(tmp_path, job))
    assert written(shared) == [], "the job is in the middle of it"
    cluster.kill(victim)
    found = outcome(job)
    assert found["hosts"] == list(HOSTS), "both hosts took part before"
    assert written(shared) == list(range(ROWS))
    assert staged(shared) == [], "what the dead worker staged is gone"
