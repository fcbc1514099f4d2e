"""Creates the folders of a federation: certificates, keys, and configurations of nginx and systemd."""
