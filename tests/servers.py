"""Real PostgreSQL, MariaDB and RabbitMQ servers in temporary folders, for tests and benchmarks.

    server = postgresql()            # or mariadb(durable=True) for a benchmark
    url = server.new_database()      # a fresh, empty database
    server.kill(); server.start()    # a crash and a restart on the same folder and port
    server.stop()                    # ends it by pid and removes the folder

Each server listens on 127.0.0.1 on a free port and knows nothing of the machine's own instances. It dies
with the process that started it, however that ends; a folder left behind by a killed process is removed by
the next start. Start servers from a process's main thread: the kernel ends them when the *thread* that
started them ends.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, ClassVar
from urllib.parse import urlsplit

import pika
import pika.exceptions
import psycopg
import pymysql

from tests.certificates import Certificate
from tests.deadline import HANG_S

SHM = Path("/dev/shm")
SHM_ROOM = 2 << 30
PREFIX = "myrmidon-db-"
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)
_numbers = itertools.count(1)


class CannotStart(Exception):
    """A server could not be brought up; the message says why and ends with its last words."""


class Server:
    """One server of its own. Made by `postgresql()`, `mariadb()` and `rabbitmq()`, not by hand."""

    kind: ClassVar[str]
    account: ClassVar[str]
    death_signal: ClassVar[int]
    stop_signal: ClassVar[int]

    def __init__(self, *, durable: bool) -> None:
        self.durable = durable
        self._reserved = reserve_port()
        self.port = port_of(self._reserved)
        self.process: subprocess.Popen[bytes] | None = None
        self.user = _account(self.account)
        self.folder, self._lock = _new_folder(durable=durable, user=self.user)
        self.data = self.folder / "data"
        self.log = self.folder / "log"
        atexit.register(self.stop)

    @property
    def url(self) -> str:
        raise NotImplementedError

    def new_database(self) -> str:
        """The URL of a fresh, empty database; it lives as long as its server."""
        return new_database(self.url)

    def start(self) -> None:
        """Start, or start again after `kill`, on the same port; returns once the server answers."""
        self.process = self._spawn(self._command())
        try:
            self._wait_until_it_answers()
        except CannotStart:
            self._end(signal.SIGKILL)
            raise

    def kill(self) -> None:
        """SIGKILL, as a crash would; the folder stays for `start`."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End the server and remove its folder. Harmless when repeated, or in a fork of the starter."""
        atexit.unregister(self.stop)
        self._end(self.stop_signal)
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()
        self._reserved.close()

    def prepare(self) -> None:
        """Make the data folder: the slow part, safe to run in a thread."""
        done = subprocess.run(self._install_command(), capture_output=True, check=False, **self._as_user())
        if done.returncode:
            said = _last_lines(done.stdout + done.stderr)
            raise CannotStart(f"{self.kind} could not make its folder: {said}")

    def _install_command(self) -> list[str]:
        raise NotImplementedError

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _as_user(self) -> dict[str, Any]:
        """Servers refuse to run as root, so root hands them to their own account.

        Each has its own folder for temporary files: a MariaDB that starts removes those of all others from
        a shared one, and one that loses a temporary table between making and opening it crashes.
        """
        own = {"cwd": self.folder, "stdin": subprocess.DEVNULL, "env": os.environ | {"TMPDIR": str(self.folder)}}
        if not self.user:
            return own
        return own | {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": []}

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        parent, death_signal = os.getpid(), self.death_signal

        def die_with_parent() -> None:
            # After the change of user, which would clear it. A parent gone already would never tell us.
            _libc.prctl(PR_SET_PDEATHSIG, death_signal)
            if os.getppid() != parent:
                os._exit(1)

        with self.log.open("ab") as log:
            return subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                start_new_session=True,  # an interrupt at the terminal is the test run's to handle
                preexec_fn=die_with_parent,
                **self._as_user(),
            )

    def _wait_until_it_answers(self) -> None:
        assert self.process is not None
        end = time.monotonic() + HANG_S
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise CannotStart(f"{self.kind} ended while starting: {_last_lines(self.log.read_bytes())}")
            if self._answers():
                return
            time.sleep(0.02)
        said = _last_lines(self.log.read_bytes())
        raise CannotStart(f"{self.kind} did not answer in {HANG_S:.0f} s: {said}")

    def _answers(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError, pymysql.err.OperationalError):
            execute(self.url, "SELECT 1")
            return True
        return False

    def _end(self, how: int) -> None:
        process = self.process
        if process is None or process.poll() is not None:
            return
        process.send_signal(how)
        try:
            process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class RabbitMQ(Server):
    """A broker with its own node name, Erlang cookie and port mapper; `kill` and `start` keep queues and messages."""

    kind = "rabbitmq"
    account = "rabbitmq"
    death_signal = signal.SIGKILL
    stop_signal = signal.SIGKILL
    home = Path("/usr/lib/rabbitmq/bin")

    def __init__(self, *, durable: bool = False, certificate: Certificate | None = None) -> None:
        super().__init__(durable=durable)
        self._certificate = certificate
        self._tls_port = reserve_port()
        self._other_ports = [reserve_port(), reserve_port()]
        self._epmd: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}"

    @property
    def tls_url(self) -> str:
        return f"amqps://guest:guest@127.0.0.1:{port_of(self._tls_port)}"

    def prepare(self) -> None:
        files = {
            ".erlang.cookie": os.urandom(16).hex(),
            "plugins": "[].",
            "env.conf": "",
            "rabbitmq.conf": "disk_free_limit.absolute = 1MB\nvm_memory_high_watermark.absolute = 1GB\n" + self._tls(),
        }
        if self._certificate is not None:
            files |= {"tls.pem": self._certificate.file.read_text(), "tls.key": self._certificate.key.read_text()}
        for name, text in files.items():
            file = self.folder / name
            file.write_text(text)
            file.chmod(0o400 if name == ".erlang.cookie" else 0o644)
            if self.user:
                os.chown(file, self.user.pw_uid, self.user.pw_gid)

    def _tls(self) -> str:
        if self._certificate is None:
            return ""
        settings = {
            "listeners.ssl.1": f"127.0.0.1:{port_of(self._tls_port)}",
            "ssl_options.certfile": str(self.folder / "tls.pem"),
            "ssl_options.keyfile": str(self.folder / "tls.key"),
            "ssl_options.verify": "verify_none",
            "ssl_options.fail_if_no_peer_cert": "false",
        }
        return "".join(f"{name} = {value}\n" for name, value in settings.items())

    def start(self) -> None:
        if self._epmd is None:  # Erlang would start one that outlives the test
            self._epmd = self._spawn([_binary("epmd"), "-address", "127.0.0.1"])
        super().start()

    def stop(self) -> None:
        super().stop()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait()
        for port in (self._tls_port, *self._other_ports):
            port.close()

    def _command(self) -> list[str]:
        return [str(self.home / "rabbitmq-server")]

    def _as_user(self) -> dict[str, Any]:
        dist, mapper = (str(port_of(port)) for port in self._other_ports)
        own = super()._as_user()
        return own | {
            "env": {
                "PATH": os.environ["PATH"],
                "LANG": "C.UTF-8",
                "HOME": str(self.folder),
                "TMPDIR": str(self.folder),
                "ERL_EPMD_PORT": mapper,
                "ERL_CRASH_DUMP_BYTES": "0",
                "RABBITMQ_ALLOW_INPUT": "1",  # the script then replaces itself, and the signals reach the broker
                "RABBITMQ_SERVER_START_ARGS": "-noinput",
                "RABBITMQ_NODENAME": f"test{self.port}@localhost",
                "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
                "RABBITMQ_NODE_PORT": str(self.port),
                "RABBITMQ_DIST_PORT": dist,
                "RABBITMQ_CONF_ENV_FILE": str(self.folder / "env.conf"),
                "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
                "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
                "RABBITMQ_MNESIA_BASE": str(self.data),
                "RABBITMQ_LOG_BASE": str(self.folder),
                "RABBITMQ_LOGS": "-",
            }
        }

    def _answers(self) -> bool:
        try:
            pika.BlockingConnection(pika.URLParameters(self.url)).close()
        except pika.exceptions.AMQPError:
            return False
        return True


class PostgreSQL(Server):
    kind = "postgresql"
    account = "postgres"
    death_signal = signal.SIGQUIT  # ends the backends too, and frees shared memory
    stop_signal = signal.SIGQUIT  # nobody comes back to the folder, so nothing is written out

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def _end(self, how: int) -> None:
        """SIGKILL goes to every process: orphaned backends would hold the folder for a moment."""
        process = self.process
        if process is None or process.poll() is not None:
            return
        children = _children(process.pid) if how == signal.SIGKILL else []
        super()._end(how)
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        _wait_until_gone(children)

    def _install_command(self) -> list[str]:
        return [
            _binary("initdb"), "-D", str(self.data), "-A", "trust", "-U", "postgres", "-E", "UTF8",
            "--locale=C.UTF-8", "--no-instructions", *([] if self.durable else ["--no-sync"]),
        ]  # fmt: skip

    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "" if self.durable else str(self.folder),
            "shared_buffers": "512MB" if self.durable else "128MB",
            "max_wal_size": "2GB",
            "max_connections": "200",
            "dynamic_shared_memory_type": "mmap",  # in the folder: nothing outlives it
            "deadlock_timeout": "1s" if self.durable else "50ms",
        }
        if not self.durable:
            settings |= {"fsync": "off", "full_page_writes": "off", "wal_level": "minimal", "max_wal_senders": "0"}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [_binary("postgres"), "-D", str(self.data), "-p", str(self.port), *options]


class MariaDB(Server):
    kind = "mariadb"
    account = "mysql"
    death_signal = signal.SIGKILL
    stop_signal = signal.SIGKILL

    @property
    def url(self) -> str:
        return f"mysql://root@127.0.0.1:{self.port}/mysql"

    def _install_command(self) -> list[str]:
        return [
            _binary("mariadb-install-db"), "--no-defaults", f"--datadir={self.data}",
            "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve",
            "--innodb-log-file-size=8M", "--innodb-buffer-pool-size=32M",
            *([] if self.durable else ["--innodb-flush-method=nosync", "--innodb-flush-log-at-trx-commit=0"]),
        ]  # fmt: skip

    def _command(self) -> list[str]:
        settings = {
            "datadir": str(self.data),
            "socket": str(self.folder / "socket"),
            "pid-file": str(self.folder / "pid"),
            "port": str(self.port),
            "bind-address": "127.0.0.1",
            "skip-name-resolve": "1",
            "innodb-buffer-pool-size": "512M" if self.durable else "128M",
            "innodb-log-file-size": "512M" if self.durable else "96M",
            "innodb-flush-log-at-trx-commit": "1" if self.durable else "0",
            "innodb-flush-method": "O_DIRECT" if self.durable else "nosync",
            "max-connections": "200",
        }
        if not self.durable:
            settings |= {"innodb-doublewrite": "0", "innodb-stats-auto-recalc": "0"}
        return [
            _binary("mariadbd"),
            "--no-defaults",
            *(f"--{name}={value}" for name, value in settings.items()),
        ]


KINDS: dict[str, type[Server]] = {"postgresql": PostgreSQL, "mariadb": MariaDB}
"""The databases."""
BINARIES = {
    "postgresql": ("postgres", "initdb"),
    "mariadb": ("mariadbd", "mariadb-install-db"),
    "rabbitmq": ("rabbitmq-server", "erl", "epmd"),
}


def postgresql(*, durable: bool = False) -> Server:
    """A running PostgreSQL. Durable: fsync on and on a real disk; else as fast as a test likes it."""
    return _started(PostgreSQL(durable=durable))


def mariadb(*, durable: bool = False) -> Server:
    """A running MariaDB; `durable` as for `postgresql`."""
    return _started(MariaDB(durable=durable))


def rabbitmq(certificate: Certificate | None = None) -> RabbitMQ:
    """A running RabbitMQ; with a certificate it accepts TLS too, at a port of its own."""
    broker = RabbitMQ(certificate=certificate)
    _started(broker)
    return broker


def why_no_rabbitmq() -> str | None:
    """None when RabbitMQ can be started here, else the reason why not."""
    return _why_not("rabbitmq", RabbitMQ.account)


def start_all(kinds: list[str]) -> dict[str, Server | CannotStart]:
    """Start one of each at the same time; what cannot be started comes back as the reason."""
    servers = {kind: KINDS[kind](durable=False) for kind in kinds}
    with ThreadPoolExecutor() as threads:
        prepared = {kind: threads.submit(server.prepare) for kind, server in servers.items()}
    started: dict[str, Server | CannotStart] = {}
    for kind, server in servers.items():
        try:
            prepared[kind].result()
            server.start()
            started[kind] = server
        except CannotStart as why:
            server.stop()
            started[kind] = why
    return started


def available() -> dict[str, str | None]:
    """For each kind of server, None when it can be started here, else the reason why not."""
    return {kind: _why_not(kind, server.account) for kind, server in KINDS.items()}


def new_database(server_url: str) -> str:
    """A fresh database in the server at this URL, which may have been started by another process."""
    name = f"t{os.getpid()}_{next(_numbers)}"
    execute(server_url, f"CREATE DATABASE {name}")
    return urlsplit(server_url)._replace(path=f"/{name}").geturl()


def execute(url: str, sql: str) -> None:
    """Run one administrative statement on a connection of its own."""
    at = urlsplit(url)
    if at.scheme == "postgresql":
        with psycopg.connect(url, autocommit=True, connect_timeout=round(HANG_S)) as pg:
            pg.execute(sql.encode())
        return
    my = pymysql.connect(
        host=at.hostname,
        port=at.port or 0,
        user=at.username,
        database=at.path[1:],
        connect_timeout=round(HANG_S),
        autocommit=True,
        ssl_disabled=True,  # loading the machine's certificates takes longer than everything else here
    )
    try:
        my.cursor().execute(sql)
    finally:
        my.close()


def _started(server: Server) -> Server:
    try:
        server.prepare()
        server.start()
    except BaseException:
        server.stop()
        raise
    return server


def _why_not(kind: str, account: str) -> str | None:
    missing = [name for name in BINARIES[kind] if not _find(name)]
    if missing:
        return f"{kind} is not installed here: no {' and no '.join(missing)}"
    if os.getuid() == 0 and _account(account) is None:
        return f"{kind} does not run as root and there is no user {account}"
    return None


def _binary(name: str) -> str:
    found = _find(name)
    if found is None:
        raise CannotStart(f"{name} is not installed here")
    return found


def _find(name: str) -> str | None:
    """PostgreSQL's binaries are kept off the PATH by Debian, and MariaDB's daemon off an ordinary user's."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda at: float(at.parent.name))
    places = [str(at) for at in reversed(versions)] + [
        os.environ.get("PATH", ""),
        "/usr/sbin",
        "/usr/local/sbin",
    ]
    return shutil.which(name, path=os.pathsep.join(places))


def _account(name: str) -> pwd.struct_passwd | None:
    """The account to run a server as, or None to run it as ourselves."""
    if os.getuid() != 0:
        return None
    with contextlib.suppress(KeyError):
        return pwd.getpwnam(name)
    return None


def _new_folder(*, durable: bool, user: pwd.struct_passwd | None) -> tuple[Path, IO[bytes]]:
    """A folder with a lock held while its owner lives: a folder whose lock is free belongs to nobody."""
    base = _base(durable=durable)
    _remove_left_behind(base)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    lock = (folder / "lock").open("wb")
    fcntl.flock(lock, fcntl.LOCK_EX)
    if user:
        os.chown(folder, user.pw_uid, user.pw_gid)
    return folder, lock


def _base(*, durable: bool) -> Path:
    if durable:
        return Path(os.environ.get("MYRMIDON_BENCH_DIR") or "/var/tmp")  # /tmp may be memory
    disk = Path(tempfile.gettempdir())
    if not os.access(SHM, os.W_OK):
        return disk
    room = os.statvfs(SHM)
    return SHM if room.f_bavail * room.f_frsize >= SHM_ROOM else disk


def _remove_left_behind(base: Path) -> None:
    for folder in base.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), (folder / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


def reserve_port() -> socket.socket:
    """A port for a server that is started and killed again and again; closing the socket gives it back.

    The socket is bound and does not listen. So the system gives the port to nobody who asks for any port, and a server
    that sets SO_REUSEADDR, as ours, PostgreSQL and MariaDB do, can still listen on it.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved


def port_of(reserved: socket.socket) -> int:
    return int(reserved.getsockname()[1])


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def _wait_until_gone(pids: list[int]) -> None:
    end = time.monotonic() + HANG_S
    while time.monotonic() < end and any(_alive(pid) for pid in pids):
        time.sleep(0.005)


def _alive(pid: int) -> bool:
    """A zombie is not: it holds nothing and waits only for its parent's attention."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _last_lines(output: bytes) -> str:
    return " | ".join(output.decode(errors="replace").strip().splitlines()[-5:])
