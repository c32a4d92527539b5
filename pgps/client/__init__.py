"""The client library: publish to a broker and subscribe to it, asynchronously or not.

`AsyncClient` is the source, `Client` its twin for programs with threads; both
have the same methods.
"""

from pgps.client._async.client import AsyncClient
from pgps.client._async.conversation import AsyncConversation
from pgps.client._async.group import AsyncGroup
from pgps.client._async.identity import AsyncIdentity
from pgps.client._async.occurrence import AsyncOccurrence, AsyncReply
from pgps.client._async.receiving import AsyncBatch
from pgps.client._async.subscription import AsyncSubscription
from pgps.client._async.units import AsyncParty
from pgps.client._names import Registration, State
from pgps.client._spools import SpooledMessage
from pgps.client._sync.client import Client
from pgps.client._sync.conversation import Conversation
from pgps.client._sync.group import Group
from pgps.client._sync.identity import Identity
from pgps.client._sync.occurrence import Occurrence, Reply
from pgps.client._sync.receiving import Batch
from pgps.client._sync.subscription import Subscription
from pgps.client._sync.units import Party
from pgps.client.events import Event, Handling, class_source, event_class, event_type
from pgps.client.units import Message, UnitOfWork

__all__ = [
    "AsyncBatch",
    "AsyncClient",
    "AsyncConversation",
    "AsyncGroup",
    "AsyncIdentity",
    "AsyncOccurrence",
    "AsyncParty",
    "AsyncReply",
    "AsyncSubscription",
    "Batch",
    "Client",
    "Conversation",
    "Event",
    "Group",
    "Handling",
    "Identity",
    "Message",
    "Occurrence",
    "Party",
    "Registration",
    "Reply",
    "SpooledMessage",
    "State",
    "Subscription",
    "UnitOfWork",
    "class_source",
    "event_class",
    "event_type",
]
