# SPDX-License-Identifier: Apache-2.0
"""kvtier.llama_proxy - a port before llama.cpp's server, behind which prompts continue from KV that kvtier has.

    llama-server -m model.gguf --port 8080 --slot-save-path /dev/shm/slots
    python -m kvtier.llama_proxy --to http://127.0.0.1:8080 --slots /dev/shm/slots

Clients of the server are given the proxy's address in place of the server's. This file is the command; how a request
passes is said in adapters/llama_relay.py, and how KV does in llama_server.py.
"""
from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import urllib.parse
from typing import Optional, Sequence, Tuple

from . import Codec
from .adapters.llama_relay import Proxy
from .llama_server import SlotCache

__all__ = ["Proxy", "main"]

_log = logging.getLogger("kvtier")
_ABOUT = """\
Stands before llama-server, or xllamacpp's server, on the same machine. Clients are given the proxy's address in place
of the server's, and see the same answers, with faster first tokens: the KV of prompts outlives the server's slots, and
the server."""
_MORE = """\
Start the server with a directory for slots, on a tmpfs, then the proxy, as the same user:

  mkdir -p /dev/shm/slots
  llama-server -m model.gguf --port 8080 --slot-save-path /dev/shm/slots
  python -m kvtier.llama_proxy --to http://127.0.0.1:8080 --slots /dev/shm/slots

and ask the proxy, twice, with a prompt of more than 64 tokens:

  curl http://127.0.0.1:8090/v1/chat/completions -d '{"messages": [{"role": "user", "content": "..."}]}'

The proxy's log has a line for each prompt: how many of its tokens were loaded, how many blocks are new. The answer
counts them as cached_tokens. Without a kvtierd (kvtierctl status) all is answered, and each line says why it is slow.
The daemon's socket is that of $KVTIER_SOCKET, or where kvtierd puts it."""


def _listen(text: str) -> Tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r}, must be HOST:PORT, as in 127.0.0.1:8090 or [::1]:8090")
    return host.strip("[]"), int(port)


def _to(text: str) -> str:
    try:
        url = urllib.parse.urlsplit(text)
        good = url.scheme == "http" and url.hostname and (url.port or 80) > 0 and not (url.query or url.fragment)
    except ValueError:
        good = False
    if not good:
        raise argparse.ArgumentTypeError(f"{text!r}, must be the server's address, as in http://127.0.0.1:8080")
    return text


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Runs the proxy until it gets SIGTERM or SIGINT. Answers that are under way are cut off then."""
    parser = argparse.ArgumentParser("python -m kvtier.llama_proxy", description=_ABOUT, epilog=_MORE,
                                     formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--to", required=True, type=_to, metavar="URL", help="the server: http://HOST:PORT")
    parser.add_argument("--slots", required=True, metavar="DIR",
                        help="the server's --slot-save-path; it is made if it is not there")
    parser.add_argument("--listen", default="127.0.0.1:8090", type=_listen, metavar="HOST:PORT",
                        help="where clients ask (127.0.0.1:8090)")
    parser.add_argument("--api-key", default=os.environ.get("LLAMA_API_KEY", ""), metavar="KEY[,KEY]",
                        help="the server's --api-key ($LLAMA_API_KEY). The proxy itself uses the first key. Requests "
                             "with none of these keys are handed on without kvtier")
    parser.add_argument("--model", metavar="NAME",
                        help="a name that means equal weights (the content of the server's file), for a server whose "
                             "file is not on this machine")
    parser.add_argument("--codec", default="raw", choices=("raw", "lossless", "fp8", "int8", "q4", "int8v4"),
                        help="how KV is kept (raw, bit for bit)")
    args = parser.parse_args(arguments)
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    keys = [key for key in args.api_key.split(",") if key]
    try:
        os.makedirs(args.slots, exist_ok=True)
    except OSError as error:
        parser.error(f"argument --slots: no directory can be made: {error}: name one that the server and you may write "
                     "in, as /dev/shm/slots")
    try:
        proxy = Proxy(args.listen, args.to, keys)
    except OSError as error:
        parser.error(f"argument --listen: {':'.join(map(str, args.listen))}: {error.strerror}: choose another one")
    with contextlib.suppress(KeyboardInterrupt), proxy:
        proxy.cache = SlotCache(args.to, args.slots, model=args.model, codec=Codec[args.codec.upper()],
                                api_key=keys[0] if keys else None)
        host, port = proxy.server_address[:2]
        host = f"[{host}]" if ":" in host else host
        _log.info("kvtier: http://%s:%d serves what %s does", host, port, args.to)
        proxy.serve_forever()


if __name__ == "__main__":
    main()
