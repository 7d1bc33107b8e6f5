"""Many jobs made from one: sweep files, grids, tables, files of commands; their table of results."""
