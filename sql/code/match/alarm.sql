-- A time limit for a part of a statement. alarm.client.sql stands in for it where PL/Python is missing.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.set_alarm(seconds double precision) returns boolean
language plpython3u
set search_path = pg_catalog, pg_temp
as $python$
# The server has no time limit for a part of a statement: statement_timeout counts from the client's message. So a timer
# of the operating system sends this process the signal that a cancellation sends.
if "set" in SD:
    return SD["set"](seconds)

import ctypes
import signal


class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("notify", ctypes.c_int),
                ("rest", ctypes.c_char * 48)]


class Times(ctypes.Structure):
    _fields_ = [("interval_s", ctypes.c_long), ("interval_ns", ctypes.c_long), ("value_s", ctypes.c_long),
                ("value_ns", ctypes.c_long)]


def find():
    for library in (None, "librt.so.1"):
        try:
            found = ctypes.CDLL(library)
            return found.timer_create, found.timer_settime
        except (AttributeError, OSError):
            pass
    return None, None


create, settime = find()
timer, event, monotonic = ctypes.c_void_p(), Event(None, signal.SIGINT, 0, b""), 1
usable = create is not None and create(monotonic, ctypes.byref(event), ctypes.byref(timer)) == 0


def set_timer(seconds):
    if not usable:
        return False
    whole, rest = int(seconds), int(seconds % 1 * 1_000_000_000)
    # Again and again: a filter may swallow the first one.
    return settime(timer, 0, ctypes.byref(Times(whole, rest, whole, rest)), None) == 0


SD["set"] = set_timer
return set_timer(seconds)
$python$;
comment on function pgps_internal.set_alarm(double precision) is
'Has this session cancelled after so many seconds, and again after as many; 0 = not any more. False where the operating
system has no such timers';
