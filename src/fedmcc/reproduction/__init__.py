"""The paper's tables and figures again: tables are data in recipes/tables, cells are ordinary runs."""
