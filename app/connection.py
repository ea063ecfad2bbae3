"""Closes the connections of clients that send their requests too slowly."""

import asyncio

from h11 import IDLE, SEND_BODY
from uvicorn.protocols.http.h11_impl import H11Protocol

TIMEOUT_S = 10.0  # time between two checks of a connection
MIN_BYTES = 4096  # how much of a request's body has to arrive between two checks


class TimedConnection(H11Protocol):
    """A connection that is closed if the client sends too slowly. uvicorn has no such limit.

    The connection is checked every TIMEOUT_S seconds. From one check to the next, the head of a
    request has to be complete, or MIN_BYTES of the request's body have to arrive. h11 limits the
    size of a head to 16 KiB.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._schedule_check()

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        super().data_received(data)

    def _state(self) -> tuple[object, object]:
        """Return the current request, and h11's state of the client.

        If the result is the same at two checks, no head was completed and no body ended in between.
        """
        return self.cycle, self.conn.their_state

    def _schedule_check(self) -> None:
        self._previous_state, self._received = self._state(), 0
        self.loop.call_later(TIMEOUT_S, self._check)

    def _check(self) -> None:
        """Close the connection if the client was slow since the last check; else check again."""
        if self.transport.is_closing():
            return
        _, state = self._previous_state
        # If reading is paused, the server is slow, so the client is not to blame.
        is_slow = self._received < MIN_BYTES and not self.flow.read_paused
        if self._state() == self._previous_state and (
            state is IDLE or (state is SEND_BODY and is_slow)
        ):
            self.transport.close()
        else:
            self._schedule_check()
