"""Closes the connections of clients that send their request too slowly."""

import asyncio

from h11 import IDLE, SEND_BODY
from uvicorn.protocols.http.h11_impl import H11Protocol

TIMEOUT_S = 10.0
MIN_BYTES = 4096  # of a body, within TIMEOUT_S


class TimedConnection(H11Protocol):
    """Closes a connection whose client sends too slowly, which uvicorn does not limit.

    From one check to the next, TIMEOUT_S later, a head has to be complete, and MIN_BYTES of a body
    have to arrive. h11 limits the size of a head to 16 KiB.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._schedule_check()

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        super().data_received(data)

    def _state(self) -> tuple[object, object]:
        """Return the current request, and h11's state of the client. Equal: no new head arrived."""
        return self.cycle, self.conn.their_state

    def _schedule_check(self) -> None:
        self._previous_state, self._received = self._state(), 0
        self.loop.call_later(TIMEOUT_S, self._check)

    def _check(self) -> None:
        """Close the connection if the client was slow since the last check; else check again."""
        if self.transport.is_closing():
            return
        _, state = self._previous_state
        # If reading is paused, the server is slow, not the client.
        is_slow = self._received < MIN_BYTES and not self.flow.read_paused
        if self._state() == self._previous_state and (
            state is IDLE or (state is SEND_BODY and is_slow)
        ):
            self.transport.close()
        else:
            self._schedule_check()
