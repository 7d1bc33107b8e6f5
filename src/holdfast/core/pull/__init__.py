"""How a run comes home: what the desk says that it has, and what the box sends."""
