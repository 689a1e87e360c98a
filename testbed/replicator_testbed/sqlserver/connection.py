"""One connection of a driver: its handshake, its requests, and the tokens of the answers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Any, Final, Protocol

from replicator_testbed.sqlserver import procedure_calls
from replicator_testbed.sqlserver.outcomes import (
    Bound,
    Count,
    Failed,
    Notice,
    Outcome,
    Rows,
    SqlError,
    Status,
    TransactionChanged,
)
from replicator_testbed.sqlserver.tds import tokens
from replicator_testbed.sqlserver.tds.handshake import (
    Encryption,
    Login,
    prelogin_reply,
    read_login,
    wanted_encryption,
)
from replicator_testbed.sqlserver.tds.packets import PACKET_BYTES, Assembler, PacketType, ProtocolError, split
from replicator_testbed.sqlserver.tds.requests import (
    Call,
    TransactionCall,
    read_batch,
    read_call,
    read_transaction,
)
from replicator_testbed.sqlserver.tds.tokens import Command, Done, DoneStatus

READ_BYTES: Final = 1 << 16
PREPARED_MAX: Final = 10_000


class Session(Protocol):
    """What runs statements. Every method but `cancel` is called from one thread at a time."""

    @property
    def database(self) -> str:
        """The database that it is in."""

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction is open."""

    def run(self, batch: str, parameters: Sequence[Bound] = ()) -> list[Outcome]:
        """Run a batch; errors are outcomes."""

    def transaction(self, call: TransactionCall) -> list[Outcome]:
        """Begin or end a transaction, as a driver asks."""

    def undeclared(self, batch: str) -> Rows:
        """Describe the parameters of a batch that declares none (`sp_describe_undeclared_parameters`)."""

    def cancel(self) -> None:
        """End what runs, from any thread."""

    def close(self) -> None:
        """Roll back and end."""


class Connection:
    """One connection, from its PRELOGIN to its end."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        open_session: Callable[[Login], Session],
        tls: ssl.SSLContext | None,
        executor: Executor,
    ) -> None:
        """Take a connection that was accepted; `open_session` raises SqlError for a login that is refused."""
        self._reader = reader
        self._writer = writer
        self._open_session = open_session
        self._tls = tls
        self._executor = executor
        self._assembler = Assembler()
        self._messages: list[tuple[PacketType, bytes]] = []
        self._secured: _Secured | None = None
        self._prepared: dict[int, procedure_calls.Prepared] = {}
        self._opening: Future[Session] | None = None
        self._session: Session | None = None

    async def serve(self) -> None:
        """Serve until the driver leaves."""
        loop = asyncio.get_running_loop()
        try:
            if await self._log_in():
                while True:
                    await self._answer(loop, *await self._receive())
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            # The driver left, or refused our certificate: there is nobody to tell.
            pass
        except ProtocolError as wrong:
            await self._send(tokens.error(4002, f"The incoming TDS stream is incorrect: {wrong}.", severity=20))
        finally:
            if self._opening is not None:
                # A cancellation meanwhile does not keep the session from being closed.
                closing = self._executor.submit(_close, self._opening)
                await asyncio.shield(asyncio.wrap_future(closing))
            self._writer.close()

    # -- handshake -------------------------------------------------------------------------------------------------

    async def _log_in(self) -> bool:
        kind, content = await self._receive()
        if kind is not PacketType.PRELOGIN:
            raise ProtocolError("a connection begins with PRELOGIN")
        wanted = wanted_encryption(content)
        encrypts = self._tls is not None and wanted is not Encryption.NOT_SUPPORTED
        await self._send(prelogin_reply(Encryption.ON if encrypts else Encryption.NOT_SUPPORTED))
        if self._tls is not None and encrypts:
            self._secured = await self._handshake(self._tls)
        kind, content = await self._receive()
        if kind is not PacketType.LOGIN7:
            raise ProtocolError("a login follows PRELOGIN")
        login = read_login(content)
        try:
            self._opening = self._executor.submit(self._open_session, login)
            self._session = await asyncio.shield(asyncio.wrap_future(self._opening))
        except SqlError as refused:
            await self._send(_error(refused) + tokens.done(status=DoneStatus.ERROR))
            return False
        reply = tokens.database_changed(self._session.database, "master") + tokens.collation_set()
        reply += tokens.login_acknowledged() + tokens.packet_size_set(PACKET_BYTES)
        await self._send(reply + (tokens.no_features() if login.has_features else b"") + tokens.done())
        return True

    async def _handshake(self, context: ssl.SSLContext) -> _Secured:
        """TLS in the contents of PRELOGIN packets; afterwards the packets are inside of TLS."""
        secured = _Secured(context)
        while not secured.shake_hands():
            if ready := secured.outgoing():
                await self._send(ready, kind=PacketType.PRELOGIN)
            _, content = await self._receive()
            secured.feed(content)
        if last := secured.outgoing():
            await self._send(last, kind=PacketType.PRELOGIN)
        return secured

    # -- requests --------------------------------------------------------------------------------------------------

    async def _answer(self, loop: asyncio.AbstractEventLoop, kind: PacketType, content: bytes) -> None:
        session = self._session
        assert session is not None
        if kind is PacketType.ATTENTION:
            # Nothing runs any more: the answer and the request to cancel met on their way.
            await self._send(tokens.done(status=DoneStatus.ATTENTION))
            return
        work = self._work(session, kind, content)
        running = asyncio.ensure_future(loop.run_in_executor(self._executor, work))
        listening = asyncio.ensure_future(self._receive())
        try:
            waited: set[asyncio.Future[Any]] = {running, listening}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not listening.done():
                await self._send(await running)
                if listening.done() and listening.exception() is None:
                    # It came while the answer was sent, and is answered next.
                    self._messages.insert(0, listening.result())
                return
            error = listening.exception()
            session.cancel()
            reply = await running
            if error is not None:
                raise error
            received, _ = listening.result()
            if received is not PacketType.ATTENTION:
                raise ProtocolError("a request came before the answer to the one before it")
            # What there was of an answer is not sent; the cancelled request ends with this.
            del reply
            await self._send(tokens.done(status=DoneStatus.ATTENTION))
        finally:
            if not listening.done():
                await self._unread(listening)

    async def _unread(self, listening: asyncio.Future[tuple[PacketType, bytes]]) -> None:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)

    def _work(self, session: Session, kind: PacketType, content: bytes) -> Callable[[], bytes]:
        if kind is PacketType.SQL_BATCH:
            batch = read_batch(content)
            return lambda: reply_of(session.run(batch), is_in_transaction=session.is_in_transaction)
        if kind is PacketType.TRANSACTION_MANAGER:
            transaction = read_transaction(content)
            return lambda: reply_of(session.transaction(transaction), is_in_transaction=session.is_in_transaction)
        if kind is PacketType.RPC:
            call = read_call(content)
            return lambda: self._call(session, call)
        raise ProtocolError(f"the model does not answer {kind.name}")

    def _call(self, session: Session, call: Call) -> bytes:
        try:
            outcomes, handle = procedure_calls.run(session, call, self._prepared, prepared_max=PREPARED_MAX)
        except SqlError as failed:
            outcomes, handle = [Failed(failed)], None
        return reply_of(outcomes, is_procedure=True, handle=handle, is_in_transaction=session.is_in_transaction)

    # -- bytes -----------------------------------------------------------------------------------------------------

    async def _receive(self) -> tuple[PacketType, bytes]:
        while not self._messages:
            received = await self._reader.read(READ_BYTES)
            if not received:
                raise asyncio.IncompleteReadError(b"", None)
            if self._secured is not None:
                received = self._secured.decrypt(received)
            self._messages += self._assembler.feed(received)
        return self._messages.pop(0)

    async def _send(self, content: bytes, *, kind: PacketType = PacketType.REPLY) -> None:
        for packet in split(content, kind):
            self._writer.write(packet if self._secured is None else self._secured.encrypt(packet))
        await self._writer.drain()


def reply_of(  # noqa: C901 - one case for each outcome
    outcomes: Sequence[Outcome],
    *,
    is_procedure: bool = False,
    handle: int | None = None,
    is_in_transaction: bool = False,
) -> bytes:
    """The tokens of an answer; `handle` is that of a statement that was prepared on the way."""
    parts: list[bytes] = []
    inner = Done.IN_PROCEDURE if is_procedure else Done.STATEMENT
    base = DoneStatus.IN_TRANSACTION if is_in_transaction else DoneStatus.FINAL
    ends = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, (Rows, Count, Failed))]
    last = ends[-1] if ends and not is_procedure else None
    status, has_failed = 0, False
    for index, outcome in enumerate(outcomes):
        more = base if index == last else base | DoneStatus.MORE
        match outcome:
            case Rows(columns, values):
                parts += [tokens.columns(columns), tokens.rows(columns, values)]
                parts.append(tokens.done(inner, more, command=Command.SELECT, count=len(values)))
            case Count(count, command):
                parts.append(tokens.done(inner, more, command=command, count=count))
            case Failed(error):
                has_failed = True
                parts += [_error(error), tokens.done(inner, more | DoneStatus.ERROR)]
            case Status(value):
                status = value
            case Notice(text, number):
                parts.append(tokens.error(number, text, severity=0, is_info=True))
            case TransactionChanged(descriptor, is_begun, is_committed):
                parts.append(
                    tokens.transaction_begun(descriptor)
                    if is_begun
                    else tokens.transaction_ended(descriptor, is_committed=is_committed)
                )
    if is_procedure:
        parts.append(tokens.return_status(status))
        if handle is not None:
            parts.append(tokens.return_value(handle))
        parts.append(
            tokens.done(
                Done.PROCEDURE, base | (DoneStatus.ERROR if has_failed else DoneStatus.FINAL), command=Command.EXECUTE
            )
        )
    elif last is None:
        parts.append(tokens.done(status=base))
    return b"".join(parts)


def _error(error: SqlError) -> bytes:
    return tokens.error(error.number, error.text, state=error.state, severity=error.severity)


class _Secured:
    """TLS without a socket."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    def shake_hands(self) -> bool:
        """Go as far as possible; whether the handshake is over."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def feed(self, received: bytes) -> None:
        """Take what the client sent."""
        self._incoming.write(received)

    def outgoing(self) -> bytes:
        """What is to be sent."""
        return self._outgoing.read()

    def decrypt(self, received: bytes) -> bytes:
        """What was in the records that are complete."""
        self._incoming.write(received)
        parts: list[bytes] = []
        try:
            while part := self._tls.read(READ_BYTES):
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        return b"".join(parts)

    def encrypt(self, content: bytes) -> bytes:
        """Records with this content."""
        self._tls.write(content)
        return self._outgoing.read()


Users = Mapping[str, str]
"""Passwords by user."""


def _close(opening: Future[Session]) -> None:
    """Close a session once it is open; one that was refused needs nothing."""
    with suppress(SqlError):
        opening.result().close()
