"""`python -m tpuserve_server`: runs `tpuserve serve` (start/command.py)."""

from tpuserve_server.start.command import main

if __name__ == "__main__":
    main()
