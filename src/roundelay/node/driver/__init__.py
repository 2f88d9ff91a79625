"""One engine driven in real time: what is sent, persisted, delivered and confirmed."""
