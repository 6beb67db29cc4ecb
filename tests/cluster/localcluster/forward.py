"""The way from the machine to kube-apiserver.

A socket belongs for good to the network namespace that it was made in. So one made on the machine's loopback address
and inherited by process 1 of the cluster brings connections into the cluster's own network.
"""

from __future__ import annotations

import contextlib
import socket
import threading


def serve(listener: socket.socket, target: tuple[str, int]) -> None:
    """Forward every connection, in threads, for good."""
    threading.Thread(target=_accept, args=(listener, target), name="forward", daemon=True).start()


def _accept(listener: socket.socket, target: tuple[str, int]) -> None:
    while True:
        client, _ = listener.accept()
        threading.Thread(target=_join, args=(client, target), daemon=True).start()


def _join(client: socket.socket, target: tuple[str, int]) -> None:
    with client, contextlib.suppress(OSError), socket.create_connection(target) as server:
        back = threading.Thread(target=_copy, args=(server, client), daemon=True)
        back.start()
        _copy(client, server)
        back.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for end, how in ((sink, socket.SHUT_WR), (source, socket.SHUT_RD)):
        with contextlib.suppress(OSError):
            end.shutdown(how)
