"""`python -m tpuserve_server`: runs `tpuserve serve` (startup/command.py)."""

from tpuserve_command.programs import serve

if __name__ == "__main__":
    serve()
