"""Messages between processes over ZeroMQ: the pipe, and nothing more.

ZeroMQ may lose a message without a word, so numbering, repeating and time limits belong to the
state machines. Here sending never blocks and never fails: what cannot be handed over is dropped,
and comes again by the machine's own timer. Only this module and ``security`` know zmq.
"""

import errno
import itertools
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

import zmq

from ctrps.codec import WIRE, Buffer
from ctrps.errors import ClusterError, CtrpsError
from ctrps.runtime import shared
from ctrps.runtime.security import HANDSHAKE_S, Call, Door, Gate, Guard, is_loopback, resolve
from ctrps.runtime.shared import Channel

COPIED_BYTES = 1 << 18
"""Frames up to this size are copied when they are sent: telling Python that one has left, so that
its array is free again, costs more than that."""

MOST_CHANNELS = 64
"""Peers of this machine that a listener shares memory with."""

LOOK_S = 0.002
"""How long sockets may be left alone while messages come by shared memory."""

CHECK_S = 0.1
"""Time between two looks at whether connections are refused."""

SILENT_S = 5.0
"""A connection on which nothing is acknowledged for so long is made anew: the system would try it
again at ever longer intervals, and find only long afterwards that a network is well again."""

CONNECT_S = 2.0
"""For an attempt to connect; the next one follows within a second."""

HIGH_WATER = 1000
"""Messages that one peer's queue holds; the machines have fewer than that under way."""


class Transport:
    """The sockets of one process.

    Parameters
    ----------
    boot
        The name of this process for its peers, unique for each start.
    bind
        Host and port to listen on (port 0: any), or None for a process that only connects.
    setting
        The config key that states ``bind``, for errors.
    role
        What this process is; it decides whom it admits, and as what it is admitted.
    guard
        Its job key, or the permission to go without. Default: loopback addresses only.
    tell
        Takes a line for people: a peer was refused, or anybody could come in.

    Attributes
    ----------
    address : str
        ``host:port`` that others can connect to; empty if nothing is bound.

    Raises
    ------
    ClusterError
        The address cannot be bound, or a name cannot be resolved.
    ConfigError
        The address is not loopback, and there is no job key.
    """

    def __init__(
        self,
        boot: str,
        bind: tuple[str, int] | None = None,
        setting: str = "",
        role: str = "worker",
        guard: Guard | None = None,
        tell: Callable[[str], None] = lambda line: None,
    ):
        self._context = zmq.Context()
        self._role = role
        self._guard = guard or Guard()
        self._tell = tell
        self._gate: Gate | None = None
        self._door: Door | None = None
        self._calls: dict[Hashable, Call] = {}
        self._roles: dict[Hashable, str] = {}
        self._boot = boot.encode()
        self._poller = zmq.Poller()
        self._out: dict[Hashable, zmq.Socket[bytes]] = {}
        self._addresses: dict[Hashable, str] = {}
        self._names: dict[zmq.Socket[bytes], Hashable] = {}
        self._offered: dict[Hashable, Channel] = {}
        self._channels: OrderedDict[Hashable, Channel] = OrderedDict()
        self._near = False
        self._next_look = self._next_check = 0.0
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._poller.register(self._wake_read, zmq.POLLIN)
        self._router: zmq.Socket[bytes] | None = None
        self.address = ""
        if bind is not None:
            try:
                self._router = self._listen(*bind, setting)
            except CtrpsError:
                self.close()
                raise

    def _socket(self, kind: int) -> "zmq.Socket[bytes]":
        made = self._context.socket(kind)
        made.setsockopt(zmq.MAXMSGSIZE, WIRE.frame_bytes)
        made.setsockopt(zmq.SNDHWM, HIGH_WATER)
        made.setsockopt(zmq.RCVHWM, HIGH_WATER)
        made.setsockopt(zmq.LINGER, 1000)
        made.setsockopt(zmq.IPV6, 1)
        made.setsockopt(zmq.HANDSHAKE_IVL, round(1000 * HANDSHAKE_S))
        made.setsockopt(zmq.TCP_MAXRT, round(1000 * SILENT_S))
        made.setsockopt(zmq.CONNECT_TIMEOUT, round(1000 * CONNECT_S))
        return made

    def _listen(self, host: str, port: int, setting: str) -> "zmq.Socket[bytes]":
        # Resolved before there is a socket: one that nobody closes would block the context's end.
        literal = self._permitted(host, f"{host}:{port}", setting)
        if self._guard.key is not None:
            self._gate = Gate(self._context, self._guard.key, self._role)
        router = self._socket(zmq.ROUTER)
        self._guard.listen(router)
        door = Door(router, self._guard.key)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        try:
            router.bind(f"tcp://{literal}:{port or '*'}")
        except zmq.ZMQError as error:
            door.close()
            router.close()
            raise ClusterError(
                f"cannot listen there: {_why(error)}",
                where=f"{host}:{port}",
                hint=f"set {setting} to another address, or to port 0 for a free one",
                id="E-CLUSTER-ADDRESS",
            ) from None
        bound: str = router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.address = f"{host}:{bound.rpartition(':')[2]}"
        self._near = shared.can_share() and is_loopback(literal)
        self._door = door
        for source in (router, door.socket, *([self._gate.socket] if self._gate else [])):
            self._poller.register(source, zmq.POLLIN)
        return router

    def _permitted(self, host: str, address: str, setting: str = "") -> str:
        """The host of an address, resolved, if this process may use it."""
        literal = resolve(host)
        if warning := self._guard.permit(address, literal, setting):
            self._tell(f"warning: {warning}")
        return literal

    def connect(self, peer: Hashable, address: str) -> None:
        """From now on ``peer`` is reached at ``address``; nothing happens if it is already."""
        if self._addresses.get(peer) == address:
            return
        if peer in self._out:
            self._drop(peer)
        host, _, port = address.rpartition(":")
        literal = self._permitted(host.strip("[]"), address)
        # Messages wait for the connection: the first one comes sooner than it stands, and would
        # otherwise come again only after the machine's time for repeats.
        dealer = self._socket(zmq.DEALER)
        dealer.setsockopt(zmq.ROUTING_ID, self._boot)
        dealer.setsockopt(zmq.RECONNECT_IVL, 100)
        dealer.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        self._guard.call(dealer, self._role)
        self._calls[peer] = Call(dealer, address, self._guard.key)
        dealer.connect(f"tcp://{literal}:{port}")
        self._out[peer], self._names[dealer], self._addresses[peer] = dealer, peer, address
        self._poller.register(dealer, zmq.POLLIN)
        if shared.can_share() and is_loopback(literal):
            self._offer(peer)

    def keep(self, addresses: Mapping[int, str]) -> None:
        """Reach these peers from now on; others that are reached by a number are let go."""
        for gone in [p for p in self._out if isinstance(p, int) and p not in addresses]:
            self._drop(gone)
        for peer, address in addresses.items():
            self.connect(peer, address)

    def _offer(self, peer: Hashable) -> None:
        """Offer memory to a peer of this machine; it is used when the peer has accepted."""
        self._forget(peer)
        self._offered[peer] = channel = Channel.make()
        self.send(peer, [channel.offer(self._wake_write)])

    def _forget(self, peer: Hashable) -> None:
        for channels in (self._offered, self._channels):
            channel = channels.pop(peer, None)
            if channel is not None:
                channel.close()

    def _drop(self, peer: Hashable) -> None:
        dealer = self._out.pop(peer)
        self._poller.unregister(dealer)
        del self._names[dealer], self._addresses[peer]
        self._calls.pop(peer).close()
        dealer.close()
        self._forget(peer)

    def role(self, peer: Hashable) -> str:
        """The role of a peer by its key; empty where no keys are used."""
        return self._roles.get(peer, "")

    def send(self, peer: Hashable, frames: Sequence[Buffer]) -> bool:
        """Hand a message over; False if that is not possible now."""
        if self._share(peer, frames):
            return True
        dealer = self._out.get(peer)
        try:
            if dealer is not None:
                _send(dealer, frames)
            elif self._router is not None and isinstance(peer, bytes):
                _send(self._router, [peer, *frames])
            else:
                return False
        except zmq.ZMQError as error:
            if error.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                return False
            raise
        return True

    def _share(self, peer: Hashable, frames: Sequence[Buffer]) -> bool:
        """Hand a message over in shared memory; False if that is not possible now."""
        channel = self._channels.get(peer)
        if channel is None:
            return False
        self._channels.move_to_end(peer)
        if channel.put(frames):
            return True
        if channel.closed:
            self._lose(peer)
        return False

    def _lose(self, peer: Hashable) -> None:
        """A channel is of no use any more; a process that comes back is offered another."""
        self._forget(peer)
        if peer in self._out:
            self._offer(peer)

    def poll(self, timeout_s: float) -> Iterator[tuple[Hashable, list[Buffer]]]:
        """Wait for messages, a ``wake`` or the time limit; then all messages that are there.

        The frames are buffers of their own that nobody else writes.

        Raises
        ------
        ClusterError
            A peer refuses this process, or is none of ctrps; said once for each connection.
        """
        near, now = self._pending(), time.monotonic()
        if near and now < self._next_look:
            return self._take(near)
        self._next_look = now + LOOK_S
        if now >= self._next_check:
            self._next_check = now + CHECK_S
            for call in list(self._calls.values()):
                call.check()
        if not near:
            for channel in self._channels.values():
                channel.wait(True)
            near = self._pending()
        ready = dict(self._poller.poll(0 if near else max(0, round(1000 * timeout_s))))
        for channel in self._channels.values():
            channel.wait(False)
        if ready.pop(self._wake_read, None):
            _drain(self._wake_read)
        if self._gate and ready.pop(self._gate.socket, None):
            self._gate.answer()
        if self._door and ready.pop(self._door.socket, None):
            for line in self._door.refused():
                self._tell(line)
        far = itertools.chain.from_iterable(map(self._receive, ready))
        return itertools.chain(self._take(near or self._pending()), far)

    def _pending(self) -> list[Hashable]:
        return [peer for peer, channel in self._channels.items() if channel.pending]

    def _take(self, peers: list[Hashable]) -> Iterator[tuple[Hashable, list[Buffer]]]:
        """A message of each peer: one that answers at once must not keep others waiting."""
        for peer in peers:
            # A message may lead to the end of another channel.
            channel = self._channels.get(peer)
            frames = channel.take() if channel else None
            if frames:
                yield peer, frames
            elif channel:
                self._lose(peer)

    def _receive(self, source: "zmq.Socket[bytes]") -> Iterator[tuple[Hashable, list[Buffer]]]:
        for _ in range(HIGH_WATER):
            try:
                frames = source.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            buffers: list[Buffer] = [frame.buffer for frame in frames]
            peer: Hashable
            if source is not self._router:
                peer = self._names[source]
            else:
                peer, buffers = bytes(buffers[0]), buffers[1:]
                if self._gate:
                    self._roles[peer] = str(frames[-1].get("User-Id"))
            first = buffers[0] if buffers else b""
            kind = first[0] if len(first) else 0
            if kind == shared.OFFER:
                self._accept(peer, bytes(first))
            elif kind == shared.ACCEPT:
                self._accepted(peer, bytes(first))
            elif buffers:
                yield peer, buffers

    def _accept(self, peer: Hashable, offer: bytes) -> None:
        if self._near and peer not in self._out and (channel := Channel.open(offer)):
            self._forget(peer)
            self.send(peer, [channel.accept(self._wake_write)])
            self._channels[peer] = channel
            if len(self._channels) > MOST_CHANNELS:
                # Of a worker that is gone, mostly; another one offers a new channel.
                self._forget(next(iter(self._channels)))

    def _accepted(self, peer: Hashable, message: bytes) -> None:
        channel = self._offered.pop(peer, None)
        if channel is not None and channel.accepted(message):
            self._channels[peer] = channel
        elif channel is not None:
            channel.close()

    def wake(self) -> None:
        """End a ``poll`` early; may be called from any thread."""
        try:
            os.write(self._wake_write, b"\0")
        except BlockingIOError:
            return  # the pipe is full of wakes already

    def close(self) -> None:
        """Close all sockets; last messages have a second to leave."""
        for peer in [*self._offered, *self._channels]:
            self._forget(peer)
        for call in self._calls.values():
            call.close()
        if self._door:
            self._door.close()
        for sock in [*self._out.values(), *([self._router] if self._router else [])]:
            sock.close()
        if self._gate:
            self._gate.socket.close()
        self._context.term()
        os.close(self._wake_read)
        os.close(self._wake_write)


def _send(to: "zmq.Socket[bytes]", frames: Sequence[Buffer]) -> None:
    """Hand over all frames or, by an error at the first, none."""
    last = len(frames) - 1
    for number, frame in enumerate(frames):
        more = zmq.SNDMORE if number < last else 0
        to.send(frame, zmq.NOBLOCK | more, copy=len(frame) <= COPIED_BYTES)


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 4096):
            continue
    except BlockingIOError:
        return


def _why(error: zmq.ZMQError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "the port is already in use"
    return (error.strerror or str(error)).lower()
