"""Terminal output: messages, tables and progress displays."""
