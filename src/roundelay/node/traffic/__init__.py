"""Datagrams of a node: what arrives, what is sent, and what nodes say to each other."""
