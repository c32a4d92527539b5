"""Scripts that were written by hand: each repeats a situation in which events were once lost."""

from __future__ import annotations

from tests.links.storm.script import Script

# The path of a broker changes to a neighbour that has fewer events than the broker itself. The neighbour once asked for
# the events that the broker lacked before those that it lacked itself: it had 1,050 of 1,906 events, with all links up.
BEHIND = """
name behind
seconds 16
broker o 0
broker n 1
broker m 1
broker l 2
link o n
link n m
link o l
link m l
publish o
keep m m_read t* ge5
keep m m_called tick odd
keep l l_read t* ge3
keep l l_called tick in2
keep n n_read tock eq4
at 2.0 drop m l
at 4.0 kill_server 1
at 4.1 pause o n
at 4.3 start_server 1
at 5.0 burst o 2000
at 5.5 burst o 2000
at 6.0 burst o 2000
at 6.5 burst o 2000
at 8.0 pause o l
at 8.2 make m l
at 11.0 resume o n
at 14.0 resume o l
"""

# Two neighbours make the same event type at the same time; then the path changes to one of them and to the other.
TYPES = """
name types
seconds 14
broker a 0
broker b 1
broker c 2
broker d 0
link a b
link b c
link c d
link a d
publish a b c d
keep a a_read t* any
keep b b_read t* ge2
keep c c_read t* ge4
keep d d_read t* odd
at 1.0 type tnew1 a b
at 1.0 type tnew2 b c
at 1.6 type tnew3 c d
at 3.0 pause a b
at 5.0 resume a b
at 5.2 pause b c
at 6.5 type tnew4 a d
at 7.5 resume b c
at 8.0 pause c d
at 10.0 resume c d
"""

# The path to an origin changes back and forth, while subscriptions are made and dropped at every broker on it.
TURNS = """
name turns
seconds 16
broker o 0
broker p 1
broker q 2
broker r 1
broker s 0
link o p
link o q
link p r
link q r
link r s
link q s
publish o r
keep r r_read t* ge4
keep r r_called tick ge7
keep s s_read t* in3
keep s s_called tick odd3
keep q q_read tock ge8
keep p p_read tick eq3
at 1.0 pause o p
at 1.5 subscribe r s1 t* ge1
at 2.0 drop q r
at 2.2 resume o p
at 2.6 pause o q
at 2.8 subscribe s s2 tick ge2
at 3.2 make q r
at 3.4 resume o q
at 3.8 pause p r
at 4.4 subscribe q s3 t* any
at 4.8 unsubscribe r s1
at 5.0 resume p r
at 5.1 pause q s
at 5.6 subscribe r s4 t* ge2
at 6.0 kill_worker q
at 6.2 drop q r
at 6.4 resume q s
at 6.6 start_worker q
at 7.0 kill_server 2
at 7.5 start_server 2
at 8.0 make q r
at 8.4 pause o p
at 9.0 unsubscribe s s2
at 9.5 subscribe s s5 t* ge1
at 10.0 resume o p
at 10.2 pause o q
at 11.0 unsubscribe q s3
at 11.5 resume o q
at 12.0 cut r
at 12.5 cut q
at 13.0 pause p r
at 14.0 resume p r
"""

# The files of a server are restored to an older state. Its workers go on as if nothing had happened, until the
# administrator declares the restore.
PUTBACK = """
name putback
seconds 13
broker a 0
broker b 1
broker c 2
broker d 1
link a b
link b c
link a c
link c d
publish a b c d
keep a a_read t* ge3
keep a a_called tick odd
keep b b_read t* any
keep c c_read tock in4
keep c c_called tick eq5
keep d d_read t* ge6
keep d d_called tick odd5
at 1.0 backup_server 1
at 5.5 restore_server 1 late
at 10.5 pause a b
at 11.5 resume a b
"""

# A redundant link is drained and dropped while the server of one of its ends dies, and made anew while the only other
# path there is cut.
WINDOW = """
name window
seconds 10
broker a 0
broker b 1
broker c 2
broker d 1
link a b
link b c
link c a
link c d
link d a
publish a c
keep b b_read t* ge4
keep b b_called tick in2
keep d d_read t* odd3
keep d d_called tick ge7
keep c c_read tock eq2
keep a a_read t* ge8
at 1.4 drop b c
at 1.5 kill_server 1
at 1.6 pause c d
at 2.4 start_server 1
at 3.1 burst a 600
at 3.2 make b c
at 3.4 pause a b
at 4.2 resume c d
at 4.3 drop d a
at 4.4 kill_server 1
at 4.8 burst c 600
at 5.0 start_server 1
at 5.6 resume a b
at 6.3 make d a
at 6.6 pause c a
at 7.3 drop b c
at 7.7 resume c a
at 8.0 kill_worker b
at 8.4 make b c
at 8.8 start_worker b
"""

# There is no second path anywhere: whenever a part fails, events wait until it is back.
TREE = """
name tree
seconds 8
broker a 0
broker b 1
broker c 2
link a b
link c b
publish a b c
keep a a_read t* any
keep a a_called tick ge6
keep b b_read tock odd2
keep c c_read t* ge2
keep c c_called tick in3
at 0.5 kill_worker b
at 0.8 subscribe a s1 t* ge4
at 1.0 start_worker b
at 1.5 pause a b
at 2.0 burst c 200
at 2.2 subscribe c s2 tick any
at 2.5 resume a b
at 3.0 kill_server 1
at 3.4 start_server 1
at 4.5 cut b
at 5.0 break c b
at 5.5 unsubscribe a s1
at 5.8 mend c b
at 6.2 kill_worker c
at 6.4 start_worker c
at 6.6 cut a
"""

STORIES = {script.name: script for script in map(Script.parse, (TREE, BEHIND, WINDOW, TURNS, TYPES, PUTBACK))}
