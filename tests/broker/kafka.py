"""A real Kafka for tests: finds one or starts one, and ends what it started.

Sources, in this order:

1. `LANEWAY_TEST_BOOTSTRAP`: a cluster somebody else runs; it is never stopped or paused.
2. Docker, when an engine answers: the `apache/kafka` image through testcontainers.
3. A JVM (17 or newer): broker and controller in one process on loopback. Maven is needed once, to fetch
   the jars that `kafka-pom.xml` names; the class path is kept in `.cache/` (or `LANEWAY_TEST_CACHE`).

A JVM broker ends with the process that started it, also when that one is killed: the kernel sends it
SIGKILL (Linux), `atexit` does elsewhere. Its directory is locked for as long as either lives; a directory
that nobody locks is swept away by the next start.

The benchmarks may use this module too, hence no pytest here.
"""

from __future__ import annotations

import atexit
import base64
import fcntl
import hashlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

NOTHING_FOUND = (
    "needs a real Kafka: set LANEWAY_TEST_BOOTSTRAP, or start a Docker engine, "
    "or install a JVM (17 or newer) with Maven"
)
POM = Path(__file__).with_name("kafka-pom.xml")
REPOSITORY = Path(__file__).resolve().parents[2]
START_DEADLINE_S = 60.0
MAVEN_DEADLINE_S = 600.0
_SOON_READY = "-XX:TieredStopAtLevel=1"

# What every broker started here runs with: one node, quick groups, room for a 5 MiB value.
SETTINGS: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    # A killed broker comes back only when its former registration has lapsed (9 s by default).
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "auto.create.topics.enable": "false",
    "message.max.bytes": str(10 * 1024 * 1024),
    "num.network.threads": "2",
    "num.io.threads": "4",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    # Under the `consumer` protocol the broker owns these; a test changes them for one group by the
    # group's own configuration (`consumer.session.timeout.ms`).
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "4000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
    "log.cleaner.backoff.ms": "1000",
    "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
}

# Replaces itself by the JVM, after asking the kernel to end it with its parent. A launcher, because
# `preexec_fn` is not safe in a process with threads. arguments: parent's pid, command...
_LAUNCHER = """
import ctypes, os, signal, sys
parent, command = int(sys.argv[1]), sys.argv[2:]
if sys.platform == "linux":
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent has gone")
os.execv(command[0], command)
"""


class NoKafkaError(Exception):
    """No source of a real Kafka exists here; the message is the sentence to show."""


class KafkaStartError(Exception):
    """A source exists, and its broker did not come up."""


class NotOurBrokerError(Exception):
    """The broker was started by somebody else, so it cannot be stopped, paused or restarted from here."""


class KafkaBroker(ABC):
    """One running Kafka. `bootstrap` stays the same over pause, kill and restart."""

    def __init__(self, bootstrap: str, source: str, *, ours: bool) -> None:
        self.bootstrap = bootstrap
        self.source = source
        self.ours = ours

    @abstractmethod
    def stop(self) -> None:
        """Ends the broker for good and removes its data; may be called twice."""

    @abstractmethod
    def pause(self) -> None:
        """Freezes the broker: connections stay open, nothing answers."""

    @abstractmethod
    def resume(self) -> None:
        """Lets a paused broker go on."""

    @abstractmethod
    def kill(self) -> None:
        """Ends the broker at once, as kill -9 does; `restart` brings it back."""

    @abstractmethod
    def restart(self) -> None:
        """Ends the broker properly if it runs, and starts it again on the same port and data."""


class OwnBroker(KafkaBroker):
    """A broker made here; `start_together` brings it up.

    Attributes:
        behind_proxy: the address of a second listener, where there is a proxy before this broker: whoever
            comes in here is sent to the proxy's port for everything that follows.
    """

    behind_proxy = ""

    @abstractmethod
    def prepare(self) -> None:
        """What has to be done once, and may be done beside other brokers."""

    @abstractmethod
    def launch(self) -> None:
        """Starts it from the main thread (a JVM ends with the thread it is from) and returns at once."""

    @abstractmethod
    def await_answer(self) -> None:
        """Returns once it serves."""


class ExternalBroker(KafkaBroker):
    """A cluster named by the environment: used, never touched."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap, "LANEWAY_TEST_BOOTSTRAP", ours=False)
        wait_until_it_answers(bootstrap, time.monotonic() + START_DEADLINE_S)

    def stop(self) -> None:
        """Leaves the cluster as it is."""

    def pause(self) -> None:
        """Refuses."""
        raise self._refusal()

    def resume(self) -> None:
        """Refuses."""
        raise self._refusal()

    def kill(self) -> None:
        """Refuses."""
        raise self._refusal()

    def restart(self) -> None:
        """Refuses."""
        raise self._refusal()

    def _refusal(self) -> NotOurBrokerError:
        return NotOurBrokerError(f"{self.bootstrap} comes from {self.source}: use the fixture `own_kafka`")


class JvmBroker(OwnBroker):
    """Broker and controller in one JVM on loopback.

    Args:
        ports: the broker's and the controller's; free ones by default.
        storage: what the tool that formats the storage is told beside the settings.
        proxy_port: of a proxy on loopback that stands before it.
        for_speed: it is compiled as for a long life, which costs more than all that a test asks of it.
    """

    def __init__(
        self,
        settings: Mapping[str, str],
        heap_mb: int,
        ports: tuple[int, int] | None = None,
        storage: Sequence[str] = (),
        proxy_port: int | None = None,
        for_speed: bool = False,
    ) -> None:
        java, class_path = _find_java(), _class_path()
        port, controller_port = ports or free_ports(2)
        super().__init__(f"127.0.0.1:{port}", "JVM", ours=True)
        _sweep_abandoned_directories()
        self.directory = Path(tempfile.mkdtemp(prefix=_DIRECTORY_PREFIX))
        self._lock = _lock_directory(self.directory)
        assert self._lock is not None, "a new directory cannot be locked by anybody else"
        self._process: subprocess.Popen[bytes] | None = None
        self._properties = self.directory / "server.properties"
        self._log = self.directory / "broker.log"
        self._java = [java, "-cp", class_path, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        self._heap = [f"-Xms{min(heap_mb, 256)}m", f"-Xmx{heap_mb}m", "-XX:+UseSerialGC"]
        if not for_speed:
            self._heap.append(_SOON_READY)
        atexit.register(self.stop)
        lines = {
            **SETTINGS,
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
            "log.dirs": str(self.directory / "data"),
            **settings,
        }
        if proxy_port is not None:
            self.behind_proxy = f"127.0.0.1:{free_ports(1)[0]}"
            lines["listeners"] += f",PROXIED://{self.behind_proxy}"
            add_proxied_listener(lines, proxy_port)
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        self._storage = storage or ("--standalone", "-t", random_uuid())

    @property
    def pid(self) -> int:
        """The JVM's process id."""
        if self._process is None:
            raise KafkaStartError("the broker does not run")
        return self._process.pid

    def stop(self) -> None:
        """Kills the JVM by its pid (its data is of no use any more) and removes its directory."""
        atexit.unregister(self.stop)
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def pause(self) -> None:
        """Freezes the JVM with SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Lets the JVM go on with SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Ends the JVM with SIGKILL, paused or not."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """SIGTERM and a clean shutdown if it runs, then the same port and the same data."""
        if self._process is not None:
            self.resume()
            self._process.terminate()
            try:
                self._process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None
        self.launch()
        self.await_answer()

    def prepare(self) -> None:
        """Formats the storage."""
        quick = [_SOON_READY, "-Xmx64m"]
        tool = ["kafka.tools.StorageTool", "format", *self._storage, "-c"]
        command = [*self._java, *quick, *tool, str(self._properties)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_DEADLINE_S, check=False)
        if done.returncode:
            raise KafkaStartError(f"formatting the storage failed:\n{done.stdout}{done.stderr}")

    def launch(self) -> None:
        """Starts the JVM with its formatted storage."""
        broker = [*self._java, *self._heap, "kafka.Kafka", str(self._properties)]
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid())]
        assert self._lock is not None, "a stopped broker is not started again"
        with self._log.open("ab") as log:
            # The JVM inherits the directory's lock; it goes when both of us have gone.
            self._process = subprocess.Popen(
                [*launcher, *broker],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                pass_fds=[self._lock],
                start_new_session=True,  # Ctrl-C is for the tests; they end the broker themselves
            )

    def await_answer(self) -> None:
        """Returns once it serves."""
        try:
            wait_until_it_answers(self.bootstrap, time.monotonic() + START_DEADLINE_S, self._process)
        except KafkaStartError as error:
            log_end = self._log.read_text(errors="replace")[-4000:]
            self.kill()
            raise KafkaStartError(f"{error}; its log ends with:\n{log_end}") from error


def add_proxied_listener(lines: dict[str, str], proxy_port: int) -> None:
    """Settings of a second listener, beside its own address: its clients are sent to the proxy."""
    lines["advertised.listeners"] += f",PROXIED://127.0.0.1:{proxy_port}"
    lines["listener.security.protocol.map"] += ",PROXIED:PLAINTEXT"


def start_together(brokers: Sequence[OwnBroker]) -> None:
    """Starts brokers side by side; stops them all when one does not come up."""
    try:
        with ThreadPoolExecutor(len(brokers)) as threads:
            list(threads.map(lambda broker: broker.prepare(), brokers))
        for broker in brokers:
            broker.launch()
        for broker in brokers:
            broker.await_answer()
    except BaseException:
        for broker in brokers:
            broker.stop()
        raise


def find_kafka() -> KafkaBroker:
    """The Kafka for a test session: the first source of the three that exists here.

    Raises:
        NoKafkaError: there is none; tests skip with this sentence.
        KafkaStartError: there is one, and it does not work; tests fail.
    """
    bootstrap = os.environ.get("LANEWAY_TEST_BOOTSTRAP", "")
    return ExternalBroker(bootstrap) if bootstrap else start_kafka()


def start_kafka(
    settings: Mapping[str, str] | None = None, *, heap_mb: int = 512, proxy_port: int | None = None
) -> OwnBroker:
    """Starts a broker of our own, by Docker or in a JVM, with `settings` over the usual ones.

    Call it from the main thread: the JVM ends with the thread that started it.

    Args:
        proxy_port: where a proxy on loopback listens, or will, that stands before the broker.

    Raises:
        NoKafkaError: neither exists here.
        KafkaStartError: the broker did not come up.
    """
    if docker_answers():
        # Imported here: it costs a third of a second, and most machines take another source.
        from tests.broker.docker import DockerBroker  # noqa: PLC0415

        broker: OwnBroker = DockerBroker(settings or {}, proxy_port=proxy_port)
    else:
        require_jvm()
        broker = JvmBroker(settings or {}, heap_mb, proxy_port=proxy_port)
    start_together([broker])
    return broker


def require_jvm() -> None:
    """Raises NoKafkaError where no broker can be started in a JVM."""
    if not _find_java() or not _class_path():
        raise NoKafkaError(NOTHING_FOUND)


@cache
def docker_answers() -> bool:
    """Whether a Docker engine answers, not only whether there is a client."""
    docker = shutil.which("docker")
    if docker is None:
        return False
    command = [docker, "version", "--format", "{{.Server.Version}}"]
    try:
        return subprocess.run(command, capture_output=True, timeout=5, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


@cache
def _find_java() -> str:
    """The path of a JVM that can run Kafka 4; empty when there is none."""
    home = os.environ.get("JAVA_HOME", "")
    java = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    if java is None:
        return ""
    said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    version = re.search(r'version "(\d+)', said)
    return java if version and int(version[1]) >= 17 else ""


def _class_path() -> str:
    """Kafka's class path, from the cache or else from Maven; empty without Maven."""
    folder = Path(os.environ.get("LANEWAY_TEST_CACHE") or REPOSITORY / ".cache")
    cached = folder / f"kafka-{hashlib.sha256(POM.read_bytes()).hexdigest()[:16]}.classpath"
    if cached.exists():
        class_path = cached.read_text()
        if all(Path(jar).exists() for jar in class_path.split(os.pathsep)):
            return class_path
    maven = shutil.which("mvn")
    if maven is None:
        return ""
    folder.mkdir(parents=True, exist_ok=True)
    fresh = cached.with_suffix(f".{os.getpid()}")
    plugin = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath"
    command = [maven, "-q", "-B", "-f", str(POM), plugin, f"-Dmdep.outputFile={fresh}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MAVEN_DEADLINE_S, check=False)
    if done.returncode:
        raise KafkaStartError(f"Maven could not fetch Kafka ({POM.name}):\n{done.stdout[-4000:]}")
    fresh.replace(cached)
    return cached.read_text()


_DIRECTORY_PREFIX = "laneway-kafka-"


def _lock_directory(directory: Path) -> int | None:
    """Takes the directory's lock; None when somebody alive holds it."""
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _sweep_abandoned_directories() -> None:
    """Removes what brokers of killed test sessions left behind."""
    for directory in Path(tempfile.gettempdir()).glob(f"{_DIRECTORY_PREFIX}*"):
        # One without a lock file is just being made by another session.
        if (directory / "lock").exists() and (lock := _lock_directory(directory)) is not None:
            shutil.rmtree(directory, ignore_errors=True)
            os.close(lock)


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on, below the range for outgoing connections.

    In that range a client that tries to reach a stopped broker could be given the broker's own port.
    """
    ports: list[int] = []
    for port in random.sample(range(20_000, 30_000), 200):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise KafkaStartError("no free port between 20000 and 30000")


def random_uuid() -> str:
    """A random id in Kafka's notation, not mistakable for an option."""
    return "L" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]


def wait_until_it_answers(
    bootstrap: str, deadline: float, process: subprocess.Popen[bytes] | None = None
) -> None:
    """Returns once the broker lists itself; fails when `process` ends or the deadline passes."""
    host, _, port = bootstrap.split(",", maxsplit=1)[0].rpartition(":")
    while True:
        if process is not None and process.poll() is not None:
            raise KafkaStartError(f"the broker ended with code {process.returncode}")
        # A plain connection first: librdkafka, refused once, waits longer than a broker needs to start.
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            if AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=5).brokers:
                return
        except (OSError, KafkaException):
            pass
        if time.monotonic() > deadline:
            raise KafkaStartError(f"{bootstrap} did not answer in time")
        time.sleep(0.02)
