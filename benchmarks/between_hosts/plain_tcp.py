"""The limit between two hosts: the bytes of an all-to-all over one plain TCP connection."""

from __future__ import annotations

import ctypes
import select
import socket
import time
from functools import partial

import torch

from freescale_pg.bench.cells import ELEMENT_BYTES
from freescale_pg.bench.contestants import Call, Contestant
from freescale_pg.bench.workload import Workload

_CONNECT_LIMIT = 30.0


class PlainTcp(Contestant):
    """Both hosts send the peer's part at once, each with one thread that never waits for one way.

    No header, no acknowledgement, no copy of the own part: a call is over once the kernel has
    taken all that goes and given all that comes.
    """

    name = "plain TCP"

    def __init__(self, rank: int, address: str, port: int) -> None:
        """Connects the two ranks.

        Args:
            rank: 0 listens, 1 connects.
            address: of rank 0.
            port: free there.
        """
        self._link = _listen(address, port) if rank == 0 else _connect(address, port)
        self._link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._link.setblocking(False)
        self._ready = select.poll()

    def prepare(self, workload: Workload) -> Call:
        """Takes views of the peer's halves of the tensors' memory."""
        half = workload.cell.input_bytes // 2
        peer = 1 - workload.rank
        outgoing, incoming = (
            _memory(tensor)[peer * half : (peer + 1) * half]
            for tensor in (workload.input, workload.output)
        )
        return partial(self._exchange, outgoing, incoming)

    def fills_output(self, op: str) -> bool:
        """The own part is left out."""
        del op
        return False

    def _exchange(self, outgoing: memoryview, incoming: memoryview) -> None:
        while outgoing or incoming:
            sent = self._send(outgoing) if outgoing else 0
            received = self._receive(incoming) if incoming else 0
            outgoing, incoming = outgoing[sent:], incoming[received:]
            if sent == received == 0:
                ways = (select.POLLOUT if outgoing else 0) | (select.POLLIN if incoming else 0)
                self._ready.register(self._link, ways)
                self._ready.poll()

    def _send(self, outgoing: memoryview) -> int:
        try:
            return self._link.send(outgoing)
        except BlockingIOError:
            return 0

    def _receive(self, incoming: memoryview) -> int:
        try:
            count = self._link.recv_into(incoming)
        except BlockingIOError:
            return 0
        if count == 0:
            raise ConnectionError("the peer has closed the connection")
        return count


def _memory(tensor: torch.Tensor) -> memoryview:
    # Without numpy. The workload keeps the tensor alive.
    size = tensor.numel() * ELEMENT_BYTES
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")


def _listen(address: str, port: int) -> socket.socket:
    with socket.create_server((address, port)) as server:
        server.settimeout(_CONNECT_LIMIT)
        return server.accept()[0]


def _connect(address: str, port: int) -> socket.socket:
    deadline = time.monotonic() + _CONNECT_LIMIT
    while True:
        try:
            return socket.create_connection((address, port), timeout=_CONNECT_LIMIT)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
