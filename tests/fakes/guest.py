# SPDX-License-Identifier: Apache-2.0
"""A fake space-vm as the gateway sees it: run/vm/<id>/guest.sock, CONNECT, agent records. A script runs for every stream."""

import os
import pathlib
import shutil
import socket
import struct
import threading

from fakes import records


class Closed(Exception):
    """The gateway ended the stream."""


class Stream:
    """One stream to the agent, from the agent's side."""

    def __init__(self, sock):
        self.sock = sock
        self.buffer = b""

    def _need(self, n):
        while len(self.buffer) < n:
            chunk = self.sock.recv(65536)
            if not chunk:
                raise Closed
            self.buffer += chunk
        data, self.buffer = self.buffer[:n], self.buffer[n:]
        return data

    def line(self):
        text = b""
        while not text.endswith(b"\n"):
            text += self._need(1)
        return text[:-1].decode()

    def read(self):
        length, kind, _ = struct.unpack("<IHH", self._need(8))
        return records.decode(kind, self._need(length))

    def send(self, kind, **fields):
        self.raw(records.encode(kind, **fields))

    def raw(self, data):
        self.sock.sendall(data)

    def started(self, process_id, **fields):
        self.send("STARTED", process_id=process_id, **{"pid": 321, "started_realtime_ns": 10**18, "resumed": 0, **fields})

    def exited(self, **fields):
        self.send("EXITED", **{"exit_code": 0, "signal": 0, "oom_killed": 0, "reason": "exited", "duration_ms": 5, **fields})

    def wait_closed(self):
        """Until the gateway has ended the stream."""
        try:
            while True:
                self._need(1)
        except (Closed, ConnectionError):
            return


class FakeGuest:
    """Serves one sandbox. script(stream) runs in a thread of its own for every stream that said CONNECT."""

    def __init__(self, state_dir, sandbox_id, script, answer="OK 1"):
        self.directory = pathlib.Path(state_dir, "run", "vm", sandbox_id)
        self.directory.mkdir(parents=True)
        self.script = script
        self.answer = answer
        self.streams = []
        self.errors = []
        self.open_count = 0
        self.lock = threading.Lock()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(self.directory / "guest.sock"))
        self.listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock):
        stream = Stream(sock)
        with self.lock:
            self.streams.append(sock)
            self.open_count += 1
        try:
            assert stream.line() == "CONNECT 1"
            if self.answer:
                stream.raw(self.answer.encode() + b"\n")
                self.script(stream)
            else:
                stream.wait_closed()
        except (Closed, ConnectionError, OSError):
            pass
        except Exception as error:  # pylint: disable=broad-except
            self.errors.append(error)
        finally:
            with self.lock:
                self.open_count -= 1
            sock.close()

    def die(self):
        """As if space-vm were killed: the listener and every stream go at once."""
        if self.listener.fileno() < 0:
            return
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for sock in self.streams:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            sock.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    close = die


def socket_path_fits(state_dir):
    """Unix socket paths are short; tests keep their directories so."""
    return len(os.fspath(state_dir)) < 48
