"""What a person sees in the terminal: messages, tables and progress bars."""
