#!/usr/bin/env python3
"""A frontend for Roundelay nodes in one file: Python's standard library and nothing else.

    python roundelay_frontend.py ADDR listen GROUP [COUNT]     print messages as they are delivered
    python roundelay_frontend.py ADDR send GROUP TEXT...       send each TEXT, print the receipts
    python roundelay_frontend.py ADDR someone GROUP TEXT...    ... to one application each
    python roundelay_frontend.py ADDR ask QUESTION [OF]        members, groups, status, why
    python roundelay_frontend.py ADDR paper GROUP TEXT...      only AutoRM's five commands

ADDR is HOST:PORT or unix:PATH.  The bytes are explained in docs/frontend-protocol.md.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
from typing import Any


class Frontend:
    """A connection to a node.  Methods send; `read` waits for the next thing the node says."""

    def __init__(self, address: str, *, name: str = "", extended: bool = True) -> None:
        if address.startswith("unix:"):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(address[5:])
        else:
            host, port = address.rsplit(":", 1)
            self.socket = socket.create_connection((host.strip("[]"), int(port)))
        self.stream = self.socket.makefile("rb")
        self.node: dict[str, Any] = {}
        if extended:
            self._b("HELO", "", json.dumps({"extended": True, "name": name}).encode())
            self.node = self.read()["hello"]

    def join(self, group: str) -> None:
        self._a("JOIN", group)

    def leave(self, group: str) -> None:
        self._a("LEAV", group)

    def send_everyone(self, group: str, data: bytes) -> None:
        self._b("SNDE", group, data)

    def send_someone(self, group: str, data: bytes) -> None:
        self._b("SNDS", group, data)

    def send(
        self,
        group: str,
        *messages: bytes,
        tag: int,
        to: list[str] | None = None,
        someone: bool = False,
    ) -> None:
        """Send with a receipt: `read` gives {"receipt": tag, …} or {"failed": tag, …} later."""
        body = struct.pack(">q", tag)
        if to is not None:
            body += bytes([len(to)])
            body += b"".join(bytes([len(name.encode())]) + name.encode() for name in to)
        body += struct.pack(f">H{len(messages)}I", len(messages), *map(len, messages))
        command = "SNDD" if to is not None else "SNDO" if someone else "SNDR"
        self._b(command, group, body + b"".join(messages))

    def ask(self, question: str, of: str | None = None) -> None:
        self._b("ASKQ", "", json.dumps({"id": 0, "ask": question, "of": of}).encode())

    def read(self) -> dict[str, Any]:
        """What the node says next.  Raises EOFError when it has closed the connection."""
        command = self._take(4).decode()
        group = self._take(self._take(1)[0]).decode()
        if command in ("STOP", "GOON"):
            return {command.lower(): group}
        body = self._take(*struct.unpack(">I", self._take(4)))
        if command == "RCVE":
            return {"group": group, "messages": [body]}
        if command == "RCVX":
            seq, time, size = struct.unpack_from(">qqB", body)
            at = 17 + size
            (count,) = struct.unpack_from(">H", body, at)
            sizes = struct.unpack_from(f">{count}I", body, at + 2)
            at += 2 + 4 * count
            messages = []
            for length in sizes:
                messages.append(body[at : at + length])
                at += length
            sender = body[17 : 17 + size].decode()
            return {"group": group, "seq": seq, "time": time, "sender": sender,
                    "messages": messages}  # fmt: skip
        if command == "RCPT":
            tag, seq, time = struct.unpack(">qqq", body)
            return {"group": group, "receipt": tag, "seq": seq, "time": time}
        if command == "FAIL":
            tag, flags = struct.unpack_from(">qB", body)
            return {"group": group, "failed": tag, "indeterminate": bool(flags & 1),
                    "closing": bool(flags & 2), "reason": body[9:].decode()}  # fmt: skip
        names = {"HELO": "hello", "VIEW": "view", "ANSW": "answer"}
        if command in names:
            return {"group": group, names[command]: json.loads(body)}
        return {"group": group, command: body}  # of a later version

    def close(self) -> None:
        """Also leaves all groups."""
        self.stream.close()
        self.socket.close()

    def _a(self, command: str, group: str, rest: bytes = b"") -> None:
        name = group.encode()
        if len(name) > 255:
            raise ValueError("the name of a group has at most 255 bytes")
        self.socket.sendall(command.encode() + bytes([len(name)]) + name + rest)

    def _b(self, command: str, group: str, message: bytes) -> None:
        self._a(command, group, struct.pack(">I", len(message)) + message)

    def _take(self, size: int) -> bytes:
        data = self.stream.read(size)
        if len(data) < size:
            raise EOFError("the node closed the connection")
        return data


def main(address: str, action: str, *words: str) -> None:
    frontend = Frontend(address, name="python", extended=action != "paper")
    group, texts = (words or ("",))[0], words[1:]
    if action == "listen":
        frontend.join(group)
        left = int(texts[0]) if texts else -1
        while left:
            said = frontend.read()
            if "view" in said:
                print("members", *said["view"]["members"], flush=True)
            for i, data in enumerate(said.get("messages", ())):
                place = said["seq"] + i if said["seq"] >= 0 else "-"
                print(place, said["sender"], data.decode(errors="replace"), flush=True)
                left -= 1
    elif action in ("send", "someone"):
        for tag, text in enumerate(texts):
            frontend.send(group, text.encode(), tag=tag, someone=action == "someone")
        left = len(texts)
        while left:
            said = frontend.read()
            if "failed" in said:
                raise SystemExit(said["reason"])
            if "receipt" in said:
                print("receipt", said["receipt"], said["seq"], flush=True)
                left -= 1
    elif action == "ask":
        frontend.ask(group, *texts[:1])
        answer = frontend.read()["answer"]
        if "error" in answer:
            raise SystemExit(answer["error"])
        print(json.dumps(answer["answer"]))
    elif action == "paper":
        frontend.join(group)
        for text in texts:
            frontend.send_everyone(group, text.encode())
        for _ in texts:
            print(frontend.read()["messages"][0].decode(), flush=True)
        frontend.leave(group)
    else:
        raise SystemExit(__doc__)
    frontend.close()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    try:
        main(*sys.argv[1:])
    except (OSError, EOFError) as error:
        raise SystemExit(f"{sys.argv[1]}: {error}") from None
