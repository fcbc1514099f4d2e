"""A run as a page that people read: `writing.write_report` makes one HTML file, `figures` pictures."""
