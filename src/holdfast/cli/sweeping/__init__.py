"""Many cells of one job: sweep files, grids, tables, files of commands; their table of results."""
