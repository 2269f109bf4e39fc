"""`python -m bench.far ADDRESS MILLISECONDS`: ssh's ProxyCommand to a node that is so far away, there and back.

What comes in goes out half of that later, in order; bandwidth is not limited.
"""

from __future__ import annotations

import asyncio
import os
import sys


async def carry(read: asyncio.StreamReader, write: asyncio.StreamWriter, delay_s: float) -> None:
    """Until the end of what is read; then the other side is told so."""
    loop = asyncio.get_running_loop()
    due: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        while True:
            when, block = await due.get()
            await asyncio.sleep(max(0.0, when - loop.time()))
            if not block:
                break
            write.write(block)
            await write.drain()

    delivering = asyncio.create_task(deliver())
    while True:
        block = await read.read(1 << 16)
        due.put_nowait((loop.time() + delay_s, block))
        if not block:
            break
    await delivering


async def main(address: str, milliseconds: float) -> None:
    loop, delay_s = asyncio.get_running_loop(), milliseconds / 2000
    node_in, node_out = await asyncio.open_connection(address, 22)
    here_in = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(here_in), os.fdopen(0, "rb", buffering=0))
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(1, "wb", buffering=0)
    )
    here_out = asyncio.StreamWriter(transport, protocol, None, loop)
    to_node = asyncio.create_task(carry(here_in, node_out, delay_s))
    await carry(node_in, here_out, delay_s)
    to_node.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
