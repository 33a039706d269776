"""`python -m tpuserve_server`: runs `tpuserve serve` (startup/command.py)."""

from tpuserve_server.startup.command import main

if __name__ == "__main__":
    main()
