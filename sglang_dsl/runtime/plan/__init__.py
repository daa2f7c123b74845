"""From graph to leases, sibling groups, order and next use."""
