"""Containers, decided without touching anything: references of images, binds, command lines of the runtimes."""
