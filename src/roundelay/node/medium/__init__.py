"""Datagrams to everybody or to one, over real sockets."""
