"""The kernel's log as evidence, and what the driver's error codes (Xid) in it mean."""
