"""Runs of TO, PO and SPO."""
