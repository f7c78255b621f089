"""The side that calls: one session with each node, over connections that are kept."""

from __future__ import annotations

import httpx

from goq import limits
from goq.cluster.rpc.auth import CallId, CallSigner, new_nonce
from goq.cluster.rpc.server import (
    BOOT_HEADER,
    DISK_HEADER,
    NODE_HEADER,
    NUMBER_HEADER,
    PROOF_HEADER,
    SESSION_HEADER,
)
from goq.errors import BY_CODE, GoqError, NotAllowed, Unavailable
from goq.http.client.transport import open_transport


class NodeConnections:
    """One transport for each URL of a node, with so many connections at the most."""

    def __init__(self, connections_max: int) -> None:
        self._connections_max = connections_max
        self._by_url: dict[str, httpx.AsyncBaseTransport] = {}

    def to(self, url: str) -> httpx.AsyncBaseTransport:
        """Return the transport to a node."""
        transport = self._by_url.get(url)
        if transport is None:
            transport = open_transport(httpx.URL(url).scheme, self._connections_max)
            self._by_url[url] = transport
        return transport

    async def close(self) -> None:
        """Close all connections; what waits for an answer fails."""
        for transport in self._by_url.values():
            await transport.aclose()


class RpcClient:
    """Calls other nodes as the node ``me``, which comes with ``disk``."""

    def __init__(self, me: str, secret: bytes, disk: str = "") -> None:
        self._me = me
        self._disk = disk
        self._prover = CallSigner(secret)
        self._session = new_nonce()
        self._number = 0
        self._boots: dict[str, str] = {}
        self._transports = NodeConnections(limits.CALL_CONNECTIONS_MAX)

    async def call(self, url: str, path: str, body: bytes, timeout_s: float) -> bytes:
        """Have the node at ``url`` do something; return its answer.

        Raises ``Unavailable`` where it cannot be reached, is not heard in time or is stopping,
        ``NotAllowed`` where one of both does not have the secret, and whatever ``GoqError`` it
        answers.
        """
        for _ in range(2):
            mark, response = await self._ask(url, path, body, timeout_s)
            proof = response.headers.get(PROOF_HEADER)
            if proof is not None:
                return self._checked(mark, response, proof)
            boot = response.headers.get(BOOT_HEADER)
            if boot is None:  # it stops, or begins, or is something else
                raise Unavailable(
                    f"what is at {url} does not answer as a node of a cluster does now:"
                    f" status {response.status_code}"
                )
            if boot == mark.boot:
                raise NotAllowed(
                    f"the node at {url} does not have the secret of this cluster, or this one"
                )
            self._boots[url] = boot
        raise Unavailable(f"the node at {url} was started anew; ask again")

    async def _ask(
        self, url: str, path: str, body: bytes, timeout_s: float
    ) -> tuple[CallId, httpx.Response]:
        self._number += 1
        boot = self._boots.get(url, "")
        mark = CallId(self._me, boot, self._session, self._number, self._disk)
        headers = {
            NODE_HEADER: mark.node,
            BOOT_HEADER: mark.boot,
            SESSION_HEADER: mark.session,
            NUMBER_HEADER: str(mark.number),
            DISK_HEADER: mark.disk,
            PROOF_HEADER: self._prover.of_call(mark, path, body),
        }
        timeout = httpx.Timeout(timeout_s).as_dict()
        request = httpx.Request(
            "POST", url + path, headers=headers, content=body, extensions={"timeout": timeout}
        )
        try:
            response = await self._transports.to(url).handle_async_request(request)
            await response.aread()
        except httpx.HTTPError as error:
            raise Unavailable(f"the node at {url} does not answer: {error}") from None
        return mark, response

    def _checked(self, mark: CallId, response: httpx.Response, proof: str) -> bytes:
        body = response.content
        self._prover.check(self._prover.of_answer(mark, response.status_code, [body]), proof)
        if response.status_code == 200:
            return body
        code, _, detail = body.decode(errors="replace").partition("\n")
        raise BY_CODE.get(code, GoqError)(detail)

    async def close(self) -> None:
        """Close all connections; what waits for an answer fails."""
        await self._transports.close()
