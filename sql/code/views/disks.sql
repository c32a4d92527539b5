-- The file systems of the server, and their free space. disks.client.sql stands in for it where PL/Python is missing.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.disks()
returns table (place text, total_bytes bigint, free_bytes bigint)
language plpython3u stable
set search_path = pg_catalog, pg_temp
as $python$
import os

# Space that is reserved for the system's administrator is none for the server.
directory = plpy.execute("select current_setting('data_directory') as d")[0]["d"]
places = {"data": directory, "wal": os.path.join(directory, "pg_wal")}
for row in plpy.execute("select oid, spcname from pg_tablespace where spcname not in ('pg_default', 'pg_global')"):
    places["tablespace " + row["spcname"]] = os.path.join(directory, "pg_tblspc", str(row["oid"]))
seen = set()
for place, path in places.items():
    try:
        device, found = os.stat(path).st_dev, os.statvfs(path)
    except OSError:
        continue
    if device not in seen:
        seen.add(device)
        yield place, found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
$python$;
comment on function pgps_internal.disks() is
'The file systems that the server writes to, and their total and free space';
