"""Virtual time: a heap of events, sites, disks, clocks, and everything that can happen to them."""
