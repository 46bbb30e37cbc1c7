//! Memory of this machine and of the process's control group, as the kernel reports it.

/// Returns the bytes of memory of this machine. `None` if the kernel does not report them.
pub fn memory() -> Option<u64> {
    field(&meminfo()?, "MemTotal:")
}

/// Returns the bytes that this process may still take: the kernel's estimate for the machine, and the rest of the limit of
/// the process's control group. `None` if the kernel reports neither.
pub fn available_memory() -> Option<u64> {
    let machine = meminfo().and_then(|meminfo| field(&meminfo, "MemAvailable:"));
    machine.into_iter().chain(group_memory()).min()
}

fn meminfo() -> Option<String> {
    std::fs::read_to_string("/proc/meminfo").ok()
}

fn field(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns the remaining bytes under the limit of this process's control group.
fn group_memory() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let number = |name: &str| -> Option<u64> {
        std::fs::read_to_string(format!("/sys/fs/cgroup/{own}/{name}")).ok()?.trim().parse().ok()
    };
    Some(number("memory.max")?.saturating_sub(number("memory.current")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_in_bytes() {
        let text = "MemTotal:  9 kB\nMemAvailable:   1234 kB\nHugePages_Total:  7\n";
        assert_eq!(field(text, "MemTotal:"), Some(9 << 10));
        assert_eq!(field(text, "MemAvailable:"), Some(1234 << 10));
        assert_eq!((field(text, "HugePages_Total:"), field(text, "SwapTotal:")), (None, None));
        let (available, all) = (available_memory(), memory());
        assert!(
            available > Some(0) && available <= all,
            "this machine reports both: {available:?} of {all:?}"
        );
    }
}
