"""How values, tables and errors are printed."""
