"""Who may act on the pages?

Only who has shown who it is: by a session, a token or a certificate. Nobody acts as `User:ANONYMOUS` here, though the
ACLs may allow it: who can send a form to a browser's service on the loopback address is not known to be its user.
"""

from __future__ import annotations

from sharequeue.errors import GroupAuthorizationFailed
from sharequeue.names import shown
from sharequeue.service.pages.looking import Look


def require_actor(look: Look, group_id: str, operation: str) -> None:
    """Raise GroupAuthorizationFailed unless the caller has shown who it is, and may do this with a group."""
    if not look.caller.proved:
        raise GroupAuthorizationFailed("These pages act only for who has shown who it is: sign in first.")
    if operation not in look.may(group_id):
        raise GroupAuthorizationFailed(f"{look.principal} may not {operation} group {shown(group_id)}")
