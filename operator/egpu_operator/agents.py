"""Whether a node's agent serves kubelet at this moment.

kubelet refuses a pod for good (UnexpectedAdmissionError) when its device plug-in is not there, and the Node says so
only with kubelet's next status. So the agent itself is asked, once, just before a pod is bound to its node.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

import aiohttp

from egpu import reasons

logger = logging.getLogger(__name__)

LIMIT: Final = 0.5
"""Seconds an agent has to answer."""

UNREACHABLE_FOR: Final = 60.0
"""Seconds for which an address that does not answer at all is not asked again: a firewall says nothing of the agent."""


class Agents:
    """Asks agents.

    Args:
        address_of: a node's name → where its agent answers (``10.0.0.1:9450``), or "".
        clock: seconds.
    """

    def __init__(self, *, address_of: Callable[[str], str], clock: Callable[[], float] = time.monotonic) -> None:
        self._address_of = address_of
        self._clock = clock
        self._silent: dict[str, float] = {}

    async def refusal(self, node: str) -> str:
        """Why the node's agent certainly cannot serve a pod now, or "" where it can or nobody knows."""
        address = self._address_of(node)
        if not address or self._silent.get(address, 0.0) > self._clock():
            return ""
        try:
            status = await self._ask(address)
        except ConnectionRefusedError:
            return reasons.agent_down(node)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            logger.info("agent of node %s at %s cannot be asked: %r", node, address, error)
            self._silent[address] = self._clock() + UNREACHABLE_FOR
            return ""
        return reasons.agent_not_ready(node) if status >= 500 else ""

    async def _ask(self, address: str) -> int:
        limit = aiohttp.ClientTimeout(total=LIMIT)
        async with aiohttp.ClientSession(timeout=limit) as session:
            try:
                async with session.get(f"http://{address}/readyz") as answer:
                    return answer.status
            except aiohttp.ClientConnectorError as error:
                raise error.os_error from error
