#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""prefill_proxy.py PREFILL DECODE [--port N] - one OpenAI address before two vLLM engines of a node: the first one
computes prompts, the second one answers, and kvtierd carries the KV from one to the other.

    vllm serve M --port 8001 --kv-transfer-config '{"kv_connector": "KvtierConnector", "kv_role": "kv_producer"}'
    vllm serve M --port 8002 --kv-transfer-config '{"kv_connector": "KvtierConnector", "kv_role": "kv_consumer"}'
    python client/examples/prefill_proxy.py http://127.0.0.1:8001 http://127.0.0.1:8002 --port 8000

A request goes to the prefill engine first, for one token. Its answer says how many tokens it keeps, and with these
kv_transfer_params the request goes on to the decode engine, which waits until the blocks are there. Where the prefill
engine does not answer, the decode engine computes the prompt itself. All other paths are the decode engine's. aiohttp
comes with vLLM.
"""
import argparse
import json

from aiohttp import ClientError, ClientSession, ClientTimeout, web

TIMEOUT = ClientTimeout(total=None, sock_connect=5)
NOT_OURS = {"connection", "content-length", "host", "transfer-encoding"}


def headers(of) -> dict:
    return {name: value for name, value in of.items() if name.lower() not in NOT_OURS}


class Proxy:
    def __init__(self, prefill: str, decode: str) -> None:
        self.prefill, self.decode = prefill.rstrip("/"), decode.rstrip("/")

    async def sessions(self, app: web.Application):
        async with ClientSession(timeout=TIMEOUT, auto_decompress=False) as self.session:
            yield

    async def computed(self, request: web.Request, body: dict) -> dict:
        """What the prefill engine says to the decode engine when it has computed the prompt; {}: it has not."""
        asked = {name: value for name, value in body.items() if name not in ("min_tokens", "n", "stream_options")}
        asked.update(stream=False, max_tokens=1, kv_transfer_params={"do_remote_decode": True})
        if "max_completion_tokens" in body:
            asked["max_completion_tokens"] = 1
        try:
            async with self.session.post(self.prefill + request.path_qs, json=asked,
                                         headers=headers(request.headers)) as answer:
                return (await answer.json()).get("kv_transfer_params") or {}
        except (ClientError, OSError, ValueError):
            return {}

    async def generate(self, request: web.Request) -> web.StreamResponse:
        try:
            body = dict(await request.json())
        except (TypeError, ValueError):
            raise web.HTTPBadRequest(text="the body is no JSON object") from None
        body["kv_transfer_params"] = {**(body.get("kv_transfer_params") or {}), **await self.computed(request, body)}
        return await self.hand_on(request, json.dumps(body).encode())

    async def other(self, request: web.Request) -> web.StreamResponse:
        return await self.hand_on(request, await request.read())

    async def hand_on(self, request: web.Request, body: bytes) -> web.StreamResponse:
        try:
            async with self.session.request(request.method, self.decode + request.path_qs, data=body,
                                            headers=headers(request.headers)) as answer:
                back = web.StreamResponse(status=answer.status, headers=headers(answer.headers))
                await back.prepare(request)
                async for part in answer.content.iter_any():
                    await back.write(part)
                await back.write_eof()
                return back
        except (ClientError, OSError) as error:
            raise web.HTTPBadGateway(text=f"the decode engine at {self.decode}: {error}") from None


def main() -> None:
    parser = argparse.ArgumentParser(description="One OpenAI address before a prefill and a decode engine.")
    parser.add_argument("prefill")
    parser.add_argument("decode")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    args = parser.parse_args()
    proxy, app = Proxy(args.prefill, args.decode), web.Application(client_max_size=1 << 28)
    app.cleanup_ctx.append(proxy.sessions)
    for path in ("/v1/completions", "/v1/chat/completions"):
        app.router.add_post(path, proxy.generate)
    app.router.add_route("*", "/{path:.*}", proxy.other)
    # a client that hangs up ends its request in the engine, too
    web.run_app(app, host=args.host, port=args.port, handler_cancellation=True)


if __name__ == "__main__":
    main()
