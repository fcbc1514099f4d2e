"""Atomic writing of files, file locks, and tensors in safetensors files."""
