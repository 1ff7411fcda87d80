STAGES: tuple[str, ...]

def start(
    argv: tuple[bytes, ...],
    envp: tuple[bytes, ...],
    candidates: tuple[bytes, ...],
    directory: bytes,
    own_pid_index: int,
    output_fd: int,
    report_fd: int,
    cgroup_fd: int,
    fuse_fd: int,
    nofile: int,
    oom_score_adj: bytes,
    account: tuple[int, int, tuple[int, ...]] | None,
    not_after_ns: int,
    /,
) -> tuple[int, int]: ...
