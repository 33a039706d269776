"""Threads, memory, timers and listeners of the operating system and of asyncio."""
