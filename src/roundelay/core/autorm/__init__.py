"""AutoRM (Höfig 2007): named groups of Beamon nodes, without configuration and without a leader."""
