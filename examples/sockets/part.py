r"""One part of a model on a small device: a plain program with torch and sockets, without hgpart.

It reads what `hgpart export-part` writes. On three machines, each has its own file, and knows the
addresses of all three, part 0's first; on one machine, with bash::

    hgpart partition mobilenet_v2 --k 3 --way spatial --batch-size 1 -o plan.json
    for part in 0 1 2; do hgpart export-part plan.json --part $part -o part$part.pt2; done
    for part in 0 1 2; do python part.py part$part.json localhost:{9000,9001,9002} & done; wait
"""

import json
import socket
import sys
import time
from math import prod
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch
from torch import Tensor
from torch.export.pt2_archive._package import load_pt2

PASSES = 3  # the first one takes longer


class Link:
    """A connection to another part.

    A thread reads what arrives at once, so that sending never waits for the receiver: two parts may
    send each other large messages at the same time.
    """

    def __init__(self, connection: socket.socket, part: dict[str, Any], other: int) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection, self._types = connection, part["tensors"]
        self._arrived: SimpleQueue[list[Tensor] | OSError] = SimpleQueue()
        messages = [message for stage in part["stages"] for message in stage["receives"]]
        self._messages = [message for message in messages if message["from"] == other]
        Thread(target=self._read, daemon=True).start()

    def send(self, tensors: list[Tensor]) -> int:
        """Send a message: its tensors one after the other, in the order of their elements."""
        for tensor in tensors:
            self._connection.sendall(tensor.contiguous().numpy().data)
        return sum(tensor.nbytes for tensor in tensors)

    def receive(self) -> list[Tensor]:
        """Wait for the next message; raise a ConnectionError if the other part has ended."""
        arrived = self._arrived.get()
        if isinstance(arrived, OSError):
            raise arrived
        return arrived

    def _read(self) -> None:
        try:
            for _ in range(PASSES):
                for message in self._messages:
                    self._arrived.put([self._tensor(name) for name in message["tensors"]])
        except OSError as error:  # the other part has ended
            self._arrived.put(error)

    def _tensor(self, name: str) -> Tensor:
        """Read a tensor, whose shape and type both parts know."""
        shape, dtype = self._types[name]["shape"], getattr(torch, self._types[name]["dtype"])
        content = torch.empty(prod(shape) * dtype.itemsize, dtype=torch.uint8)
        left = content.numpy().data
        while left:
            count = self._connection.recv_into(left)
            if not count:
                raise ConnectionError(f"the connection ends within {name}")
            left = left[count:]
        return content.view(dtype).reshape(shape)


def linked(part: dict[str, Any], addresses: list[tuple[str, int]]) -> dict[int, Link]:
    """Connect to the parts before this one, and wait for those behind it."""
    own, links = part["part"], dict[int, Link]()
    with socket.create_server(addresses[own]) as server:
        for other in range(own):
            while True:
                try:
                    connection = socket.create_connection(addresses[other])
                    break
                except ConnectionRefusedError:  # it has not begun yet
                    time.sleep(0.1)
            connection.sendall(bytes([own]))
            links[other] = Link(connection, part, other)
        while len(links) < part["parts"] - 1:
            connection, _ = server.accept()
            (other,) = connection.recv(1)
            links[other] = Link(connection, part, other)
    return links


def main(file: str, *addresses: str) -> None:
    """Run a part for some passes, and save what it has of the result."""
    path = Path(file)
    part = json.loads(path.read_text(encoding="utf-8"))
    (archive,) = {stage["file"] for stage in part["stages"] if "file" in stage}
    loaded = load_pt2(str(path.with_name(archive))).exported_programs
    programs = {name: program.module() for name, program in loaded.items()}
    places = [address.rpartition(":") for address in addresses]
    links = linked(part, [(host, int(port)) for host, _, port in places])

    for _ in range(PASSES):
        tensors: dict[str, Tensor] = {}
        for piece in part["inputs"]:  # from a camera; here the same random image in all programs
            image = torch.rand(piece["shape"], generator=torch.Generator().manual_seed(0))
            tensors[piece["tensor"]] = image[tuple(slice(*ends) for ends in piece["extent"])]
        begin, sent = time.perf_counter(), 0
        for stage in part["stages"]:
            for message in stage["receives"]:
                arrived = links[message["from"]].receive()
                tensors.update(zip(message["tensors"], arrived, strict=True))
            if "program" in stage:
                made = programs[stage["program"]](*(tensors[name] for name in stage["reads"]))
                tensors.update(zip(stage["makes"], made, strict=True))
            for message in stage["sends"]:
                sent += links[message["to"]].send([tensors[name] for name in message["tensors"]])
            for name in stage["frees"]:
                del tensors[name]
        seconds = time.perf_counter() - begin
    print(f"part {part['part']}: {seconds:.3f} s, {sent} bytes sent", flush=True)
    for piece in part["results"]:
        result = tensors[piece["tensor"]]
        print(f"result {piece['result']}: class {int(result.argmax())}")
        torch.save(result, f"result{piece['result']}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
