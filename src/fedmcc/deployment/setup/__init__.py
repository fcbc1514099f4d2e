"""Creates the folders of a federation: certificates, keys, and configurations for nginx and systemd."""
