"""Adapters: this project's games behind the interfaces of other projects, one module for each. All are thin."""
