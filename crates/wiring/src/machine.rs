//! Memory of this machine, as the kernel reports it.

/// Returns the bytes of memory of this machine. `None` if the kernel does not report them.
pub(super) fn memory() -> Option<u64> {
    field(&meminfo()?, "MemTotal:")
}

/// Returns the kernel's estimate of the bytes that can still be taken. `None` if the kernel does not report them.
pub(super) fn available_memory() -> Option<u64> {
    field(&meminfo()?, "MemAvailable:")
}

fn meminfo() -> Option<String> {
    std::fs::read_to_string("/proc/meminfo").ok()
}

fn field(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
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
        assert!(available_memory() <= memory(), "this machine reports both");
    }
}
