"""Who may talk to whom: the job key, the CURVE key pairs made of it, and refusals in words.

On the loopback addresses of one machine processes talk in plain text. To any other address they
need a *job key*: 32 random bytes that all of them are given, or the user's word that it may be
without. From the key each process derives the same key pairs: one for those who listen, and one for
each role that connects. So both ends prove that they have it, nothing travels unencrypted, and a
listener knows the role of each peer. A process with a key never talks without it.

Here is what concerns keys and refused connections; messages are for ``ctrps.runtime.transport``.
"""

import errno
import hashlib
import os
import re
import secrets
import socket
import stat
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

import zmq
from zmq.utils import z85

from ctrps.errors import ClusterError, ConfigError
from ctrps.sections import ClusterSection, parse_address

KEY_VARIABLE = "CTRPS_JOB_KEY"
KEY_BYTES = 32

MODE = 0o600
"""Of a key file: for its owner alone."""

LISTENER = "listener"
ADMITTED = {"scheduler": ("server", "worker"), "server": ("server", "worker")}
"""Roles that may connect to a listener of a role."""

HANDSHAKE_S = 10.0
"""How long a connection may take to say who it is. A stranger that says nothing holds a descriptor
for that long; a node that is stopped for some seconds must not lose its place."""

FAILURES = 3
"""Connections closed in the handshake, one after another, that are no accident any more."""

SAY_AGAIN_S = 60.0
MOST_PEERS = 1000
"""One line for each peer and minute, of so many peers: strangers must not flood the log."""

_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
_ENDS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED
_GONE = "a peer that has hung up"
_EVENT = struct.Struct("=Hi")


class Pair(NamedTuple):
    """A CURVE key pair, as text of ZeroMQ's Z85."""

    public: bytes
    secret: bytes


class JobKey:
    """The secret of one job.

    Examples
    --------
    >>> key = JobKey.parse("01" * 32, "here")
    >>> key
    JobKey(68ac81eb3485)
    >>> key.pair("worker") == key.pair("worker"), key.pair("worker") == key.pair("server")
    (True, False)
    """

    def __init__(self, secret: bytes):
        self._secret = secret

    def __repr__(self) -> str:
        return f"JobKey({self.fingerprint})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobKey) and secrets.compare_digest(self._secret, other._secret)

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def parse(cls, text: str, where: str) -> Self:
        """The key in a file or variable; an error does not show what stands there."""
        if not re.fullmatch(r"[0-9a-fA-F]{64}", text.strip()):
            raise ConfigError(
                "this is not a job key, which has 64 hexadecimal digits",
                where=where,
                hint="`ctrps keygen` makes one",
                id="E-CONFIG-JOBKEY",
            )
        return cls(bytes.fromhex(text.strip()))

    @classmethod
    def read(cls, path: Path) -> Self:
        """The key of a file that nobody but its owner can read."""
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                mode = os.fstat(file.fileno()).st_mode
                text = file.read(1 << 10)
        except OSError as error:
            raise ConfigError(
                f"cannot read the job key: {error.strerror}",
                where=str(path),
                hint="`ctrps keygen` makes one, cluster.key_file names it",
                id="E-CONFIG-JOBKEY",
            ) from None
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(
                f"others have access to this job key, its mode is {stat.S_IMODE(mode):03o}",
                where=str(path),
                hint=f"make it {MODE:o} (chmod {MODE:o}), or make another key if it has been seen",
                id="E-CONFIG-JOBKEY",
            )
        return cls.parse(text, str(path))

    @classmethod
    def make(cls, path: Path) -> Self:
        """Write a new key to a file that must not be there yet."""
        secret = secrets.token_bytes(KEY_BYTES)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
            with open(descriptor, "w", encoding="ascii") as file:
                file.write(secret.hex() + "\n")
        except FileExistsError:
            raise ConfigError(
                "this file is there already",
                where=str(path),
                hint="a key is never overwritten; remove it, or name another file",
                id="E-CONFIG-JOBKEY",
            ) from None
        except OSError as error:
            raise ConfigError(
                f"cannot write a job key: {error.strerror}",
                where=str(path),
                id="E-CONFIG-JOBKEY",
            ) from None
        return cls(secret)

    @property
    def fingerprint(self) -> str:
        """Tells keys apart, and says nothing about them."""
        return self._derive("fingerprint").hex()[:12]

    def pair(self, who: str) -> Pair:
        """The key pair of a role, or of those who listen."""
        secret = z85.encode(self._derive(f"curve {who}"))
        return Pair(zmq.curve_public(secret), secret)

    def _derive(self, label: str) -> bytes:
        """32 bytes that only the label and the secret give (RFC 7693, keyed, personalised)."""
        keyed = hashlib.blake2b(label.encode(), key=self._secret, digest_size=32, person=b"ctrps 1")
        return keyed.digest()


class Guard:
    """What protects the sockets of a process.

    Parameters
    ----------
    key
        The job key, None for none.
    insecure
        Plain text is permitted on any address.
    """

    def __init__(self, key: JobKey | None = None, insecure: bool = False):
        self.key = key
        self._insecure = insecure

    @classmethod
    def of(cls, cluster: ClusterSection, key_text: str) -> Self:
        """The guard of a job; ``key_text`` is what the environment holds, perhaps nothing."""
        key = JobKey.read(cluster.key_file) if cluster.key_file else None
        if key_text:
            given = JobKey.parse(key_text, KEY_VARIABLE)
            if key is not None and key != given:
                raise ConfigError(
                    f"{KEY_VARIABLE} and cluster.key_file are two different keys",
                    hint=f"unset {KEY_VARIABLE}, or leave cluster.key_file out",
                    id="E-CONFIG-JOBKEY",
                )
            key = given
        return cls(key, cluster.insecure)

    def permit(self, address: str, literal: str, setting: str = "") -> str:
        """Whether an address may be used: a warning, or nothing to say.

        Parameters
        ----------
        address
            As it was given, for people.
        literal
            Its host, resolved.
        setting
            The config key that states it.

        Raises
        ------
        ConfigError
            It is not a loopback address, and there is no key.
        """
        if self.key is not None or is_loopback(literal):
            return ""
        where = f"{setting}={address}" if setting else address
        if self._insecure:
            return f"{where}: plain text, without a job key: who reaches it can read and join"
        raise ConfigError(
            "a job key is needed for an address other than loopback",
            where=where,
            hint="make one with `ctrps keygen`, give it to all nodes by cluster.key_file or "
            f"{KEY_VARIABLE}; or permit plain text with --insecure",
            id="E-CONFIG-JOBKEY",
        )

    def check(self, cluster: ClusterSection) -> Iterator[str]:
        """Check the addresses of a job, before there are processes that use them; warnings."""
        for name in ("scheduler", "server_bind"):
            address = getattr(cluster, name)
            host = parse_address(address)[0]
            if warning := self.permit(address, resolve(host), f"cluster.{name}"):
                yield warning

    def listen(self, router: "zmq.Socket[bytes]") -> None:
        """Let a socket, which is not bound yet, want the keys of nodes."""
        if self.key is not None:
            router.setsockopt(zmq.CURVE_SERVER, 1)
            router.setsockopt(zmq.CURVE_SECRETKEY, self.key.pair(LISTENER).secret)
            router.setsockopt(zmq.ZAP_DOMAIN, b"ctrps")
            # Without an answer of the gate nobody comes in, where libzmq's default is everybody.
            router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def call(self, dealer: "zmq.Socket[bytes]", role: str) -> None:
        """Let a socket, which is not connected yet, show its role's key and want a listener's."""
        if self.key is not None:
            pair = self.key.pair(role)
            dealer.setsockopt(zmq.CURVE_PUBLICKEY, pair.public)
            dealer.setsockopt(zmq.CURVE_SECRETKEY, pair.secret)
            dealer.setsockopt(zmq.CURVE_SERVERKEY, self.key.pair(LISTENER).public)


class Gate:
    """Says which keys may connect: the answers to ZeroMQ's questions (ZAP, ZeroMQ RFC 27).

    Its answer becomes the ``User-Id`` of all that the peer sends: the role of its key.
    """

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", key: JobKey, role: str):
        self._roles = {z85.decode(key.pair(r).public): r.encode() for r in ADMITTED[role]}
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind("inproc://zeromq.zap.01")

    def answer(self) -> None:
        """Answer all questions that are there."""
        while (asked := _received(self.socket)) is not None:
            role = self._roles.get(asked[6]) if asked[5:6] == [b"CURVE"] and asked[6:] else None
            status = [b"400", b"refused", b""] if role is None else [b"200", b"", role]
            self.socket.send_multipart([b"1.0", asked[1], *status, b""])


class Door:
    """Watches who comes to a listening socket, and says who was refused and why."""

    def __init__(self, router: "zmq.Socket[bytes]", key: JobKey | None):
        self._router = router
        self._key = key
        self.socket = router.get_monitor_socket(_FAILED | _ENDS)
        self._came: dict[int, tuple[str, int]] = {}
        self._met = 0
        self._why = ""
        self._said: dict[str, float] = {}

    def refused(self) -> Iterator[str]:
        """Lines for people: peers that were refused since the last call."""
        while (event := _received(self.socket)) is not None:
            number, value = _EVENT.unpack(event[0])
            match number:
                case zmq.EVENT_ACCEPTED:
                    self._came[value] = (_peer_of(value), self._met)
                case zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    self._met += 1
                case zmq.EVENT_DISCONNECTED:
                    yield from self._gone(value)
                case _:
                    # Its end, which names the connection, is the next event.
                    self._why = self._reason(number, value)

    def _gone(self, descriptor: int) -> Iterator[str]:
        peer, met = self._came.pop(descriptor, (_GONE, -1))
        why, self._why = self._why, ""
        if not why and met == self._met:
            why = "it sent what is no message"  # nobody at all was let in since it came
        now = time.monotonic()
        fresh = now - self._said.get(peer, -SAY_AGAIN_S) >= SAY_AGAIN_S
        if why and fresh and (peer in self._said or len(self._said) < MOST_PEERS):
            self._said[peer] = now
            yield f"refused a connection from {peer}: {why}"

    def _reason(self, number: int, value: int) -> str:
        if number == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            return "its role has nothing to say here"
        plain = "it has no job key" if self._key else "it has a job key, and this node has none"
        if number == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
            return "it was silent" if value == errno.EAGAIN else f"it hung up; perhaps {plain}"
        if value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
            return plain
        return f"it has another job key than {self._key.fingerprint}" if self._key else "bad frames"

    def close(self) -> None:
        """Stop watching; before the socket is closed."""
        self._router.disable_monitor()
        self.socket.close()


class Call:
    """Watches a connection that this process makes, until it is known to be refused."""

    def __init__(self, dealer: "zmq.Socket[bytes]", address: str, key: JobKey | None):
        self._dealer = dealer
        self._address = address
        self._key = key
        self._socket = dealer.get_monitor_socket(_FAILED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._failures = 0
        self._over = False

    def check(self) -> None:
        """Look at what has happened since the last call.

        Raises
        ------
        ClusterError
            The peer refuses this process; said once.
        """
        while (event := _received(self._socket)) is not None:
            number, value = _EVENT.unpack(event[0])
            if number == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._failures = 0
                continue
            # A listener that is slow to answer may be busy; one that hangs up is not.
            closed = number == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            self._failures += value != errno.EAGAIN if closed else FAILURES
            if self._failures >= FAILURES and not self._over:
                self._over = True
                raise self._refusal()

    def _refusal(self) -> ClusterError:
        # A listener may hang up before its greeting is read: whether it wants a key stays unknown.
        if self._key is None:
            what = "refused: a job key is wanted there, or this is no node of ctrps"
        else:
            own = self._key.fingerprint
            what = f"authentication refused: another job key there, or none? This node's is {own}"
        hint = f"give all nodes the same key by cluster.key_file or {KEY_VARIABLE}"
        return ClusterError(what, where=self._address, hint=hint, id="E-CLUSTER-KEY")

    def close(self) -> None:
        """Stop watching; before the socket is closed."""
        self._dealer.disable_monitor()
        self._socket.close()


def resolve(host: str) -> str:
    """The host as zmq wants it, resolved by us: zmq would wait for a wrong name for ever."""
    if host == "*":
        return host
    try:
        family, *_, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ClusterError(
            f"cannot resolve this host: {error.strerror}",
            where=host,
            hint="check its spelling",
            id="E-CLUSTER-ADDRESS",
        ) from None
    return f"[{address[0]}]" if family == socket.AF_INET6 else str(address[0])


def can_encrypt() -> bool:
    """Whether this libzmq has CURVE, which job keys need."""
    return bool(zmq.has("curve"))


def is_loopback(literal: str) -> bool:
    """Whether only this machine can reach a resolved host."""
    return literal.startswith("127.") or literal == "[::1]"


def _received(source: "zmq.Socket[bytes]") -> list[bytes] | None:
    try:
        return source.recv_multipart(zmq.NOBLOCK)
    except zmq.Again:
        return None


def _peer_of(descriptor: int) -> str:
    """The host at the other end of a connection of libzmq's, if that is still there."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            return str(copy.getpeername()[0]).removeprefix("::ffff:")
    except (OSError, IndexError):
        return _GONE
