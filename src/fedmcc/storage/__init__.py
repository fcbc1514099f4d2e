"""Files that are written whole or not at all, and tensors in safetensors files."""
