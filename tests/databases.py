"""Databases with our schema, for one test after the other: emptying one takes a fraction of making one."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque

import asyncpg

# Whoever is still connected is in the way. To delete a few rows is quicker than to make a file for each table
# and index anew; a table that has grown is cut off.
EMPTY = """
do $$
declare
    filled record;
begin
    set local session_replication_role = replica;  -- no foreign keys: any order will do
    perform pg_terminate_backend(pid, 5000) from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid();
    for filled in
        select oid::regclass as name, pg_relation_size(oid) as size from pg_class
        where relnamespace = 'queen'::regnamespace and relkind = 'r'
            and relname not in ('migrations', 'function_sets')
            and pg_relation_size(oid) > 0
    loop
        if filled.size < 256 * 1024 then
            execute format('delete from %s', filled.name);
        else
            execute format('truncate %s cascade', filled.name);
        end if;
    end loop;
    perform setval(format('queen.%I', sequencename), start_value, false) from pg_sequences
    where schemaname = 'queen' and last_value is not null;
end $$
"""

# What a test may have changed besides rows: relations and rights on them, columns, functions, triggers,
# constraints, schemas, settings of the database, and which version of the schema it says to be.
SHAPE = """
select concat_ws(
    '|',
    (
        select string_agg(concat_ws(' ', relname, relkind, relacl, reloptions), ',' order by oid)
        from pg_class where relnamespace in ('queen'::regnamespace, 'public'::regnamespace)
    ),
    (select concat(count(*), ' ', max(xmin::text::bigint)) from pg_attribute),
    (select concat(count(*), ' ', max(xmin::text::bigint)) from pg_proc),
    (select concat(count(*), ' ', max(xmin::text::bigint)) from pg_trigger),
    (select concat(count(*), ' ', max(xmin::text::bigint)) from pg_constraint),
    (select concat(count(*), ' ', max(xmin::text::bigint)) from pg_namespace where nspname !~ '^pg_'),
    (
        select string_agg(s.setconfig::text, ',') from pg_db_role_setting s
        join pg_database d on d.oid = s.setdatabase where d.datname = current_database()
    ),
    (select string_agg(m::text, ',' order by m.number) from queen.migrations m)
)
"""


def database_of(url: str, name: str) -> str:
    """The URL of another database on the same server."""
    return url.replace("/queen?", f"/{name}?")


class Databases:
    """Those of one server, whose database ``queen`` has the schema and nothing in it.

    A test takes one and gives it back. It is emptied, and gets another name: nobody who remembers something
    of a database by its name finds it again. If the test has changed more than rows, it is dropped instead.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._numbers = itertools.count(1)
        self._free: deque[str] = deque()
        self._shape: str | None = None

    async def take(self, *, empty: bool = False) -> str:
        """The name of a database that nobody else has; ``empty``: without our schema."""
        name = f"test_{next(self._numbers)}"
        if empty:
            await self.admin(f"create database {name} strategy file_copy")
            return name
        if len(self._free) > 1:  # the one given back last may still have a connection that is being closed
            with contextlib.suppress(asyncpg.ObjectInUseError):
                await self.admin(f"alter database {self._free.popleft()} rename to {name}")
                return name
        await self.admin(f"create database {name} template queen strategy wal_log")
        return name

    async def give(self, name: str) -> None:
        """It is not needed any more."""
        if await self._emptied(name):
            self._free.append(name)
        else:
            await self.drop(name)

    async def drop(self, name: str) -> None:
        """It is not to be used again."""
        await self.admin(f"drop database if exists {name} with (force)")

    async def admin(self, statement: str) -> None:
        """Run a statement that is of no database."""
        connection = await asyncpg.connect(database_of(self._url, "postgres"))
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    async def _emptied(self, name: str) -> bool:
        if self._shape is None:
            self._shape = await self._shape_of("queen")
        try:
            return await self._shape_of(name, emptied=True) == self._shape
        except (asyncpg.PostgresError, TimeoutError):
            return False

    async def _shape_of(self, name: str, *, emptied: bool = False) -> str:
        connection = await asyncpg.connect(database_of(self._url, name), command_timeout=10)
        try:
            if emptied:
                await connection.execute(EMPTY)
            return str(await connection.fetchval(SHAPE))
        finally:
            await connection.close()
