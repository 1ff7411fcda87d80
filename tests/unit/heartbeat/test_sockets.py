"""Receiving with credentials, where the servers' tests do not see it."""

import array
import os
import socket

from node_manager.heartbeat.sockets import receive


def test_descriptors_that_are_asked_for_do_not_pass_to_children() -> None:
    """A descriptor taken in is the receiver's alone, and closed on its word."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    reader, writer = os.pipe()
    with ours, theirs:
        theirs.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [writer]))])
        message = receive(ours, 16, descriptors=1)
    (came,) = message.descriptors
    assert not os.get_inheritable(came)
    os.close(writer)
    message.close_descriptors()
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_without_credentials_there_is_no_sender() -> None:
    """A socket that does not ask for credentials names nobody, rather than somebody wrong."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        theirs.send(b"x" * 20)
        message = receive(ours, 16)
        assert (message.data, message.pid, message.uid, message.truncated) == (b"x" * 16, None, None, True)
        theirs.close()
        assert receive(ours, 16).ended
